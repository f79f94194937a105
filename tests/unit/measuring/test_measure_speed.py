"""The measure_speed stage on tiny models: what it writes, when it is off, what it refuses. No time is judged."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import read_json, read_manifest, sha256_of, write_manifest
from stages.artifacts.speed import ROUNDS
from stages.artifacts.tokens import write_tokens
from stages.errors import SecateurError
from stages.measuring.speed import comparison, drawing, footprint
from stages.params.evaluating import Speed
from tests.helpers.tiny import prompts, tiny_model

MODEL, PRUNED = Path("data/model"), Path("data/pruned")
MANIFEST = PRUNED / "pruning_manifest.json"
SMALL = {"prompt": 12, "generate": 4, "batch": 2, "repeats": 2, "warmup": 1}
LAYOUT = {"name": "uniform"}
PEAKS = {"data/model": 200, "data/pruned": 150}


@pytest.fixture
def pruned_workspace(workspace, monkeypatch):
    """A workspace with a narrower model in data/pruned; memory is made up, for a process takes seconds to start."""

    def make(layout=LAYOUT, speed=SMALL, architecture="qwen2", **sections):
        made = workspace(architecture, **sections)
        config = tiny_model(architecture).config
        config.intermediate_size = 24
        type(tiny_model(architecture))(config).save_pretrained(PRUNED)
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
    found = footprint.peak_in_process(MODEL, "auto", "cpu", False, prompts(), 4, None)
    assert 0 <= found < 200  # a tiny model: what loading the modelling code takes


def test_a_process_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SecateurError, match=r"memory of data/model could not be measured \(exit code 1\): no message"):
        footprint.peak_in_process(MODEL, "auto", "cpu", False, prompts(), 4, None)


CODES, SEQUENCE, IMAGES = 64, 65, 3


def write_images():
    """Texts and a model as fetch writes them for images: sequences of a class and the codes of an image."""
    codes = torch.randint(96, (IMAGES, SEQUENCE), generator=torch.Generator().manual_seed(0))
    codes[:, 0] = 96 + torch.arange(IMAGES)
    texts = Path("data/texts")
    facts = {name: {"name": name, "sequence": SEQUENCE} for name in ("calibration", "evaluation")}
    for name in facts:
        write_tokens(texts, name, codes.flatten().to(torch.int32).numpy(), facts[name])
    write_manifest(texts, facts)
    source = read_manifest(MODEL)
    images = {"classes": 4, "codes": CODES, "sequence": SEQUENCE}
    write_json(MODEL / "manifest.json", {**source, "images": images})
    return codes


@pytest.mark.parametrize(("scale", "halves"), [(1.75, 2), (1.0, 1)])
def test_image_models_draw_whole_images_in_turns(scale, halves, pruned_workspace):
    """Two rounds after one of warm-up; the MACs of an image are those of all its codes, for both halves."""
    images = {"count": 1, "shown": 1, "guidance_scale": scale}
    w = pruned_workspace(architecture="llamagen")
    w.change(evaluate={"speed": SMALL, "images": images})
    write_images()
    w.run("measure_speed")
    told, drawn = figures(), [row for row in rows() if row["phase"] == "images"]
    assert [(row["round"], row["model"]) for row in drawn] == [
        (i, name) for i in (0, 1) for name in ("dense", "pruned")
    ]
    assert {(row["images"], row["tokens"]) for row in drawn} == {(2, 2 * CODES)}
    assert {row["images"] for row in rows() if row["phase"] != "images"} == {None}
    seconds = [row["seconds"] for row in drawn if row["model"] == "dense"]
    assert told["dense"]["images"]["highest"] == pytest.approx(2 / min(seconds))
    assert told["ratio"]["images"]["lowest"] <= told["ratio"]["images"]["highest"]
    assert (told["guidance_scale"], told["codes"]) == (scale, CODES)
    assert told["dense"]["images_macs"] - told["pruned"]["images_macs"] == halves * CODES * 3 * 3 * 24 * 32


def test_prompts_of_images_begin_with_their_classes(pruned_workspace):
    pruned_workspace(architecture="llamagen")
    codes = write_images()
    prompt = comparison.read_prompt(Speed(prompt=5, generate=60, batch=2))
    assert prompt.equal(codes[:2, :5])


@pytest.mark.parametrize(
    ("speed", "told"),
    [
        (
            {"prompt": 60, "generate": 6},
            "evaluate.speed.prompt + generate: expected at most 65, the class and the codes",
        ),
        ({"batch": 4}, "evaluate.speed.batch: 4 prompts are more than the 3 evaluation images"),
    ],
)
def test_prompts_that_no_image_has_are_refused(speed, told, pruned_workspace):
    w = pruned_workspace(architecture="llamagen", speed=SMALL | speed)
    write_images()
    code, error = w.fail("measure_speed")
    assert code == 2
    assert told in error


def test_drawing_leaves_the_random_numbers_as_they_were():
    model, before = tiny_model("llamagen"), torch.random.get_rng_state()
    assert drawing.draw_images(model, drawing.Drawing(1, 4, CODES, 1.75)) > 0
    assert torch.random.get_rng_state().equal(before)


def test_memory_of_an_image_model_is_that_of_drawing(workspace, monkeypatch):
    workspace("llamagen")
    seen = list[drawing.Drawing]()
    monkeypatch.setattr(footprint, "draw_images", lambda model, images: seen.append(images))
    images = drawing.Drawing(2, 4, CODES, 1.75)
    threads = torch.get_num_threads()
    footprint.peak_mb(str(MODEL), "auto", "cpu", False, [[1]], 2, vars(images), threads)
    assert seen == [images]
