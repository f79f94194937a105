"""Tasks by lm-eval in a tiny workspace. One file, for lm-eval takes seconds to import."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.artifacts.manifest import sha256_of
from stages.models.loading.load import load_model, load_tokenizer
from tests.helpers.tiny import write_params
from tests.helpers.topics import (
    DOCUMENTS,
    LABELS,
    TOPICS,
    WORDS,
    documents,
    run,
    settings,
    topics_workspace,
    write_task,
)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topics_workspace(tmp_path)
    return tmp_path


def test_a_task_counts_the_likeliest_answers_and_follows_its_file(workspace, capsys):
    """One test, for lm-eval takes seconds to import."""
    write_params(workspace, evaluate=settings(["bbc_topics"], limit=8))
    for labels in (LABELS * 2, ["sports"] * 10):
        texts = documents(labels)
        assert run() == 0
        found = json.loads(Path("metrics/dense.json").read_text())["tasks"]["bbc_topics"]
        assert found["n"] == 8
        assert found["acc"] == pytest.approx(plain_accuracy(texts[:8], labels))

    documents(["weather"] * 10)
    assert run() == 2
    assert "evaluate.tasks.names: a document does not fit its task (bbc_topics)" in capsys.readouterr().err
    DOCUMENTS.unlink()
    assert run() == 2
    assert "evaluation_documents.parquet" in capsys.readouterr().err
    write_params(workspace, evaluate=settings(["bbc_topics"], include="nowhere"))
    assert run() == 2
    assert "evaluate.tasks.include: nowhere is no folder" in capsys.readouterr().err
    for names, told in ((["bbc_topic"], "expected one of bbc_topics"), (["arc_easy"], "evaluate.tasks.defaults: true")):
        write_params(workspace, evaluate=settings(names))
        assert run() == 2
        error = capsys.readouterr().err
        assert f"evaluate.tasks.names: unknown task {names[0]!r}" in error
        assert told in error


def plain_accuracy(texts, labels):
    model = load_model(Path("data/model"))
    tokenizer = load_tokenizer(Path("data/model"))
    answers = [WORDS.index(topic) for topic in TOPICS]
    right = 0
    for text, label in zip(texts, labels, strict=False):
        prompt = f"{text}\n\nThe BBC filed this story under the heading of"
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
        right += LABELS[int(logits[answers].argmax())] == label
    return right / len(texts)


def test_a_checkpoint_with_unequal_blocks_is_measured_as_the_same_one_padded_with_zeros(workspace):
    """Loaded by this package's classes, driven by lm-eval as any other."""
    from stages.assembly.checkpoint import layout_of, write_checkpoint
    from stages.models.streaming.streamed import StreamedModel
    from tests.helpers.structured_solutions import write_structured

    write_params(workspace, evaluate=settings(["bbc_topics"], limit=8))
    documents(LABELS * 2)
    pruned = write_structured(StreamedModel(Path("data/model"), torch.device("cpu")), Path("data/solution"))
    figures = {}
    for wanted in ("hetero", "padded"):
        layout = layout_of(pruned, wanted, False)
        shutil.rmtree("data/pruned", ignore_errors=True)
        Path("data/pruned").mkdir()
        write_checkpoint(Path("data/model"), Path("data/pruned"), pruned, layout, lambda done: None)
        files = {path.name: sha256_of(path) for path in Path("data/pruned").iterdir()}
        Path("data/pruned/pruning_manifest.json").write_text(json.dumps({"files": files}))
        assert run("pruned") == 0
        figures[wanted] = json.loads(Path("metrics/pruned.json").read_text())
    assert figures["hetero"]["tasks"] == figures["padded"]["tasks"]
    loss = [one["perplexity"]["value"] for one in figures.values()]
    assert loss[0] == pytest.approx(loss[1], rel=1e-5)


def measured(workspace, name, **tasks):
    """The row of a task, and how it was measured."""
    write_params(workspace, evaluate=settings([name], **tasks))
    assert run() == 0
    row = json.loads(Path("metrics/dense.json").read_text())["tasks"][name]
    return row, json.loads(Path("data/evaluation/dense/protocol.json").read_text())["tasks"]


def refused(workspace, capsys, name, **tasks):
    """The one line that an evaluation ends with."""
    write_params(workspace, evaluate=settings([name], **tasks))
    capsys.readouterr()
    assert run() == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("evaluate: ")]
    return line


PROMPT = 9
"""Words of the question that follows a document."""
GENERATED = {
    "output_type": "generate_until", "doc_to_choice": None, "doc_to_target": "{{ label }}",
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "generation_kwargs": {"until": ["."], "max_gen_toks": 4, "do_sample": False},
}  # fmt: skip


@pytest.mark.parametrize("task", ["bbc_topics", "answers"])
def test_prompts_that_do_not_fit_are_counted_and_told(workspace, capsys, task):
    write_task("answers", **GENERATED)
    room = 4 if task == "answers" else 0
    documents(LABELS, ["goal " * count for count in (3, 10, 11, 13, 5)])
    row, protocol = measured(workspace, task, max_length=PROMPT + 10 + room)
    assert (row["truncated"], row["tokens_cut"], row["n"]) == (2, 1 + 3, 5)
    assert f"at most {PROMPT + 10 + room} tokens a prompt" in protocol
    told = capsys.readouterr().err
    assert f"{task}: 2 of 5 prompts were cut from the left to {PROMPT + 10 + room} tokens" in told
    assert "Combined length" not in told
    assert "Left truncation" not in told

    row, protocol = measured(workspace, task, max_length=None)
    assert (row["truncated"], row["tokens_cut"]) == (0, 0)
    assert "at most 2048 tokens a prompt" in protocol
    assert "cut from the left" not in capsys.readouterr().err

    assert "evaluate.tasks.max_length: all 5 prompts of task" in refused(workspace, capsys, task, max_length=room + 5)


def test_an_answer_longer_than_the_input_is_refused(workspace, capsys):
    documents(LABELS)
    write_task("long", doc_to_choice=["goal " * 9, "film"], doc_to_target="0")
    assert "an answer of task long has 9 tokens" in refused(workspace, capsys, "long", max_length=8)
    write_task("answers", **GENERATED)
    assert "generates up to 4 tokens (its max_gen_toks)" in refused(workspace, capsys, "answers", max_length=4)


def test_each_task_has_its_own_number_of_examples_unless_one_is_set(workspace, capsys):
    documents(LABELS * 2)
    write_task("two", num_fewshot=2)
    write_task("none", num_fewshot=0)
    assert measured(workspace, "two")[0]["fewshot"] == 2
    row, protocol = measured(workspace, "two", fewshot=1, limit=99)
    assert row["fewshot"] == 1
    assert "two (1-shot, the first 10 documents)" in protocol
    assert measured(workspace, "bbc_topics")[0]["fewshot"] == 0
    assert "evaluate.tasks.fewshot: task none says that it takes no examples" in refused(
        workspace, capsys, "none", fewshot=1
    )


def test_examples_are_drawn_by_the_seed(workspace, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    seen = []
    tokens = HFLM._loglikelihood_tokens
    monkeypatch.setattr(
        HFLM, "_loglikelihood_tokens",
        lambda self, requests, **options: seen.append(str(requests)) or tokens(self, requests, **options),
    )  # fmt: skip
    documents(LABELS * 3)
    write_task("two", num_fewshot=2)
    for seed in (0, 0, 1):
        measured(workspace, "two", seed=seed)
    assert seen[0] == seen[1] != seen[2]


MEAN = {"aggregation": "mean", "higher_is_better": True}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metric_list": [{"metric": "acc", **MEAN}, {"metric": "accuracie", **MEAN}]}, "accuracie not found"),
        ({"metric_list": [{"metric": "acc", **MEAN}, {"metric": "bleu", **MEAN}]}, "task odd asks for bleu, which"),
        ({"metric_list": [{"metric": "acc", **MEAN, "aggregation": "maen"}]}, "got maen: correct its metric_list"),
        ({"metric_list": []}, "task odd gave no metric"),
        ({"filter_list": [{"name": "f", "filter": [{"function": "take_frist"}]}]}, "KeyError: .*take_frist"),
        ({**GENERATED, "filter_list": [{"name": "f", "filter": [
            {"function": "regex", "regex_pattern": "(", "group_select": 0}]}]}, "odd does not work: error: "),
        ({"doc_to_target": "{{ 7 if label == 'tech' else 0 }}"}, "measure a task: Label index was not in"),
    ],
)  # fmt: skip
def test_a_task_whose_figures_would_be_missing_or_wrong_is_refused(workspace, capsys, monkeypatch, change, told):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    documents(LABELS)
    write_task("odd", **change)
    line = refused(workspace, capsys, "odd")
    assert "evaluate.tasks.names: " in line
    assert re.search(told, line), line
    assert not Path("metrics/dense.json").exists()


def test_warnings_of_lm_eval_are_passed_on_once_and_bars_are_not_hidden(workspace, capsys):
    documents(LABELS)
    write_task("plain", metric_list=[{"metric": "acc"}])
    measured(workspace, "plain")
    told = capsys.readouterr().err
    assert told.count("lm-eval: [Task: plain] metric acc is defined, but aggregation is not") == 1
    assert "Running loglikelihood requests: 100%" in told


def test_bars_of_libraries_are_drawn_every_ten_seconds_where_stderr_is_no_terminal():
    code = "import stages\nfrom tqdm import tqdm\nprint(tqdm(total=1).mininterval)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "10.0\n"
