"""The leaderboard of a sweep shows of each task the metric that DVC shows, not a count beside it."""

from __future__ import annotations

from flows.leaderboard import Entry
from stages.reporting.key_figures import key_figures


def test_a_task_without_accuracy_is_shown_by_its_own_metric():
    row = {"fewshot": 0, "n": 5, "tokens_cut": 0, "truncated": 0, "word_perplexity": 31.5}
    measured = {"perplexity": {"value": 12.0}, "tasks": {"articles": row}}
    summary = {
        "dense": measured, "pruned": {**measured, "sparsity": 0.5, "covered": 1.0},
        "structure": None, "images": None, "speed": {"state": "off"},
    }  # fmt: skip
    metrics = {"dense": measured, "pruned": measured, "summary": key_figures(summary)}
    shown = Entry({"solve.sparsity": 0.5}, "one", metrics, {"solve": {"seconds": 1.0}}).row(["solve.sparsity"])
    assert shown["articles"] == 31.5


def test_a_run_of_an_image_model_is_shown_with_the_figures_of_its_samples():
    measured = {"perplexity": {"value": 12.0}, "tasks": {}, "images": {"count": 8, "fid": 3.25, "recall": None}}
    metrics = {"dense": measured, "pruned": measured, "summary": {"fid": 3.25, "images": 1.5}}
    shown = Entry({"solve.sparsity": 0.5}, "one", metrics, {"solve": {"seconds": 1.0}}).row(["solve.sparsity"])
    assert (shown["fid"], list(shown)[-1]) == (3.25, "experiment")
    assert not {"count", "recall", "images"} & set(shown)
