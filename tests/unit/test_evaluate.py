"""The evaluate stage in a tiny workspace: what it writes, its tasks, its refusals."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stages import evaluate
from stages.artifacts.manifest import read_manifest, sha256_of, write_manifest
from stages.runner import run_stage
from tests.unit.tiny import tiny_workspace, write_params

TASKS = Path(__file__).parents[2] / "tasks"
TOPICS = ["business", "entertainment", "politics", "sport", "technology"]
LABELS = ["business", "entertainment", "politics", "sports", "tech"]
WORDS = ["[BOS]", "[END]", "[PAD]", "[UNK]", *TOPICS, "The", "BBC", "filed", "story", "under", "goal", "share", "film"]
DOCUMENTS = Path("data/texts/evaluation_documents.parquet")


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A tiny model with a tokenizer of a few words, random tokens, and this project's tasks."""
    monkeypatch.chdir(tmp_path)
    tiny_workspace(tmp_path, evaluate=settings())
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[BOS]", eos_token="[END]", pad_token="[PAD]")
    tokenizer.save_pretrained("data/model")
    write_manifest(Path("data/model"), {"source": {"source": "local"}})
    shutil.copytree(TASKS, tmp_path / "tasks")
    return tmp_path


def settings(names=(), **tasks):
    return {"perplexity": {"window": 16, "stride": 16}, "tasks": {"names": list(names), "max_length": 64, **tasks}}


def documents(labels):
    texts = [f"{word} goal share film story {word}" for word, _ in zip(WORDS[4:] * 3, labels, strict=False)]
    pq.write_table(pa.table({"text": texts, "label": list(labels)}), DOCUMENTS)
    os.utime(DOCUMENTS, (0, 0))  # datasets' own cache tells files apart by their time
    return texts


def run(which="dense"):
    return run_stage("evaluate", partial(evaluate.main, which=which), ("compute", "evaluate"), cost_name="evaluate_x")


def test_figures_are_numbers_and_the_protocol_is_named(workspace):
    assert run() == 0
    figures = json.loads(Path("metrics/dense.json").read_text())
    assert figures["tasks"] == {}
    assert figures["perplexity"]["tokens"] == 15 * figures["perplexity"]["windows"] == 15 * 18
    protocol = json.loads(Path("data/evaluation/dense/protocol.json").read_text())
    for part in ("random evaluation", "18 windows of 16 tokens", "side by side", "no BOS", "270 tokens", "float32"):
        assert part in protocol["perplexity"]
    assert json.loads(Path("metrics/cost/evaluate_x.json").read_text())["tokens_per_second"] > 0


def test_running_again_gives_the_same_bytes(workspace):
    paths = [Path("metrics/dense.json"), Path("data/evaluation/dense/protocol.json")]
    assert run() == 0
    first = [path.read_bytes() for path in paths]
    assert run() == 0
    assert [path.read_bytes() for path in paths] == first


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
    for names, told in ((["bbc_topic"], "expected one of bbc_topics"), (["arc_easy"], "evaluate.tasks.defaults: true")):
        write_params(workspace, evaluate=settings(names))
        assert run() == 2
        error = capsys.readouterr().err
        assert f"evaluate.tasks.names: unknown task {names[0]!r}" in error
        assert told in error


def plain_accuracy(texts, labels):
    model = evaluate.load_model(Path("data/model"))
    tokenizer = evaluate.load_tokenizer(Path("data/model"))
    answers = [WORDS.index(topic) for topic in TOPICS]
    right = 0
    for text, label in zip(texts, labels, strict=False):
        prompt = f"{text}\n\nThe BBC filed this story under the heading of"
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompt)["input_ids"]])).logits[0, -1]
        right += LABELS[int(logits[answers].argmax())] == label
    return right / len(texts)


def test_bos_of_the_tokenizer_stands_before_every_window(workspace):
    perplexity = {"window": 16, "stride": 16, "bos": True}
    write_params(workspace, evaluate={"perplexity": perplexity, "tasks": {"names": []}})
    assert run() == 0
    assert json.loads(Path("metrics/dense.json").read_text())["perplexity"]["tokens"] == 16 * 18


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"perplexity": {"window": 4096, "stride": 1}}, "make 0 whole windows of 4096 tokens"),
        ({"tasks": {"names": ["bbc_topics"], "max_length": 4096}}, "evaluate.tasks.max_length: expected at most 2048"),
        ({"tasks": {"names": ["bbc_topics"], "include": "nowhere"}}, "evaluate.tasks.include: nowhere is no folder"),
    ],
)
def test_settings_the_model_or_text_cannot_serve_are_refused(workspace, capsys, change, told):
    values = settings()
    for key, value in change.items():
        values[key] = {**values[key], **value}
    write_params(workspace, evaluate=values)
    assert run() == 2
    assert told in capsys.readouterr().err
    assert not Path("metrics/dense.json").exists()


def test_corrupt_or_missing_files_are_refused(workspace, capsys):
    assert run("pruned") == 2
    assert "pruning_manifest.json is missing" in capsys.readouterr().err
    tokens = Path("data/texts/evaluation.parquet")
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"?")
    assert run() == 2
    assert "evaluation.parquet is corrupt: expected sha256" in capsys.readouterr().err


def test_an_unloadable_model_is_refused_in_one_line(workspace, capsys):
    Path("data/model/config.json").write_text('{"model_type": "nothing of the kind"}')
    facts = {key: value for key, value in read_manifest(Path("data/model")).items() if key != "files"}
    write_manifest(Path("data/model"), facts)
    assert run() == 2
    assert "data/model cannot be loaded as a causal language model" in capsys.readouterr().err


def test_a_checkpoint_with_unequal_blocks_is_measured_as_the_same_one_padded_with_zeros(workspace):
    """Loaded by this package's classes, driven by lm-eval as any other."""
    from stages.assembly import layout_of, write_checkpoint
    from stages.models.streamed import StreamedModel
    from tests.unit.structured_solutions import write_structured

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
