"""The measure_speed stage on tiny models: what it writes, when it is off, what it refuses. No time is judged."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import read_json, read_manifest, sha256_of
from stages.artifacts.speed import ROUNDS
from stages.errors import SecateurError
from stages.measuring.speed import comparison, footprint
from tests.helpers.tiny import prompts, tiny_model

MODEL, PRUNED = Path("data/model"), Path("data/pruned")
MANIFEST = PRUNED / "pruning_manifest.json"
SMALL = {"prompt": 12, "generate": 4, "batch": 2, "repeats": 2, "warmup": 1}
LAYOUT = {"name": "uniform"}
PEAKS = {"data/model": 200, "data/pruned": 150}


@pytest.fixture
def pruned_workspace(workspace, monkeypatch):
    """A workspace with a narrower model in data/pruned; memory is made up, for a process takes seconds to start."""

    def make(layout=LAYOUT, speed=SMALL, **sections):
        made = workspace("qwen2", **sections)
        config = tiny_model("qwen2").config
        config.intermediate_size = 24
        type(tiny_model("qwen2"))(config).save_pretrained(PRUNED)
        facts = {
            "files": {path.name: sha256_of(path) for path in PRUNED.iterdir()},
            "source_files": read_manifest(MODEL)["files"],
            **({"layout": layout} if layout else {}),
        }
        write_json(MANIFEST, facts)
        made.change(evaluate={"speed": speed}, **sections)
        monkeypatch.setattr(comparison, "peak_in_process", lambda folder, *_: PEAKS[str(folder)])
        return made

    return make


def figures():
    return json.loads(Path("metrics/speed.json").read_text())


def rows():
    return ROUNDS.read(Path("data/speed/rounds.parquet"))


def test_both_models_are_told_with_their_ratios(pruned_workspace):
    pruned_workspace().run("measure_speed")
    told = figures()
    assert (told["state"], told["layout"], told["device"].split()[0]) == ("measured", "uniform", "CPU")
    assert {name: told[name] for name in SMALL} == SMALL
    dense, pruned, ratio = told["dense"], told["pruned"], told["ratio"]
    removed = 3 * 3 * 24 * 32
    assert dense["parameters"] - pruned["parameters"] == removed
    assert dense["block_parameters"] - pruned["block_parameters"] == removed
    assert dense["weight_bytes"] - pruned["weight_bytes"] == 4 * removed
    assert dense["prefill_macs"] - pruned["prefill_macs"] == pytest.approx(removed)
    assert dense["decode_macs"] - pruned["decode_macs"] == pytest.approx(removed)
    for name in ("parameters", "block_parameters", "weight_bytes", "prefill_macs", "decode_macs"):
        assert ratio[name] == pytest.approx(pruned[name] / dense[name])
        assert ratio[name] < 1
    assert ratio["peak_memory_mb"] == 0.75
    for phase in ("prefill", "decode"):
        for speed in (dense[phase], pruned[phase], ratio[phase]):
            assert 0 < speed["lowest"] <= speed["median"] <= speed["highest"]
    assert ratio["realised"] == pytest.approx(ratio["prefill"]["median"] * ratio["prefill_macs"])


def test_the_table_has_a_row_a_round_model_and_phase(pruned_workspace):
    pruned_workspace().run("measure_speed")
    for phase, tokens, rounds in (("prefill", 24, range(8)), ("decode", 6, (0, 4))):
        part = [row for row in rows() if row["phase"] == phase]
        places = [(row["round"], row["model"]) for row in part]
        assert places == [(index, model) for index in rounds for model in ("dense", "pruned")]
        assert {row["tokens"] for row in part} == {tokens}
    manifest = read_manifest(Path("data/speed"))
    assert manifest["pruned"] == sha256_of(MANIFEST)
    assert manifest["state"] == "measured"


@pytest.mark.parametrize(
    ("layout", "speed", "reason"),
    [
        (LAYOUT, {"repeats": 0}, "evaluate.speed.repeats is 0"),
        (None, {"repeats": 0, "always": True}, "evaluate.speed.repeats is 0"),
        (None, {}, "unstructured zeros make nothing faster"),
        ({"name": "dense"}, {}, "unstructured zeros make nothing faster"),
    ],
)
def test_switched_off_or_unstructured_it_says_so_and_reads_no_model(layout, speed, reason, pruned_workspace):
    w = pruned_workspace(layout, SMALL | speed)
    (PRUNED / "model.safetensors").unlink()
    w.run("measure_speed")
    assert figures() == {"state": "off", "reason": reason}
    assert rows() == []
    assert read_manifest(Path("data/speed"))["state"] == "off"
    first = w.bytes_of("speed")
    w.run("measure_speed")
    assert w.bytes_of("speed") == first


def test_zeros_are_measured_where_that_is_asked(pruned_workspace):
    pruned_workspace(None, SMALL | {"always": True}).run("measure_speed")
    assert (figures()["state"], figures()["layout"]) == ("measured", "dense")


@pytest.mark.parametrize(
    ("speed", "told"),
    [
        (
            {"prompt": 40_000},
            "evaluate.speed: 2 prompts of 40000 tokens are more than the 300 tokens of the evaluation",
        ),
        (
            {"generate": 40_000},
            "evaluate.speed.prompt + generate: expected at most 32768, the positions that the model",
        ),
        ({"generate": 1}, "evaluate.speed.generate: input should be greater than or equal to 2, got 1"),
        ({"repeats": -1}, "evaluate.speed.repeats: input should be greater than or equal to 0, got -1"),
        ({"rounds": 3}, "evaluate.speed.rounds: unknown setting"),
    ],
)
def test_settings_that_model_or_text_cannot_serve_are_refused(speed, told, pruned_workspace):
    code, error = pruned_workspace(speed=SMALL | speed).fail("measure_speed")
    assert code == 2
    assert told in error
    assert not Path("metrics/speed.json").exists()


def test_another_model_or_a_corrupt_file_are_refused(pruned_workspace):
    w = pruned_workspace()
    manifest = read_json(MANIFEST)
    for change, told in (
        ({"source_files": {}}, "data/pruned was made from another model than data/model holds now"),
        ({"files": {"model.safetensors": "0" * 64}}, "data/pruned/model.safetensors is corrupt"),
    ):
        write_json(MANIFEST, manifest | change)
        code, error = w.fail("measure_speed")
        assert code == 2
        assert told in error
    MANIFEST.unlink()
    assert "pruning_manifest.json is missing" in w.fail("measure_speed")[1]


def test_memory_is_that_of_a_process_which_does_nothing_else(workspace):
    workspace()
    found = footprint.peak_in_process(MODEL, "auto", "cpu", False, prompts(), 4)
    assert 0 <= found < 200  # a tiny model: what loading the modelling code takes


def test_a_process_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SecateurError, match=r"memory of data/model could not be measured \(exit code 1\): no message"):
        footprint.peak_in_process(MODEL, "auto", "cpu", False, prompts(), 4)
