"""The leaderboard of a sweep shows of each task the metric that DVC shows, not a count beside it."""

from __future__ import annotations

from flows.leaderboard import Entry
from stages.reporting.key_figures import key_figures


def test_a_task_without_accuracy_is_shown_by_its_own_metric():
    row = {"fewshot": 0, "n": 5, "tokens_cut": 0, "truncated": 0, "word_perplexity": 31.5}
    measured = {"perplexity": {"value": 12.0}, "tasks": {"articles": row}}
    summary = {
        "dense": measured, "pruned": {**measured, "sparsity": 0.5, "covered": 1.0},
        "structure": None, "speed": {"state": "off"},
    }  # fmt: skip
    metrics = {"dense": measured, "pruned": measured, "summary": key_figures(summary)}
    shown = Entry({"solve.sparsity": 0.5}, "one", metrics, {"solve": {"seconds": 1.0}}).row(["solve.sparsity"])
    assert shown["articles"] == 31.5
