"""The evaluate stage in a tiny workspace: what it writes, its tasks, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.artifacts.manifest import read_manifest, write_manifest
from tests.helpers.tiny import write_params
from tests.helpers.topics import run, settings, topics_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topics_workspace(tmp_path)
    return tmp_path


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
