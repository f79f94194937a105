"""The report of an image model: figures of its samples, their pictures side by side, images a second."""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path

import pytest
import torch

from stages import report
from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import sha256_of, write_manifest
from stages.measuring.speed.comparison import ratios
from stages.measuring.speed.rounds import speeds
from stages.models.imaging.pictures import write_picture
from tests.helpers.report_findings import PAGE, Elements, outputs, run, write_attention

PROTOCOL = "8 samples of 4 classes, <guided> by 1.75, seed 0; FID on features of a small classifier"
SAMPLED = {
    "dense": {"fid": 12.5, "sfid": 20.0, "inception_score": 5.0, "precision": 0.8, "recall": 0.6, "accuracy": 0.95},
    "pruned": {
        "fid": 15.75,
        "sfid": 21.0,
        "inception_score": 4.5,
        "precision": 0.7,
        "recall": 0.599999,
        "accuracy": None,
    },
}
MANIFEST = Path("data/pruned/pruning_manifest.json")


def write_images(count=8, sampled=SAMPLED, shown=True):
    """What evaluate leaves of an image model, made up."""
    for model, figures in sampled.items():
        path = Path(f"metrics/{model}.json")
        told = json.loads(path.read_text()) | {"tasks": {}, "images": {"count": count, **figures} if count else None}
        write_json(path, told)
        path = Path(f"data/evaluation/{model}/protocol.json")
        protocol = json.loads(path.read_text()) | {"images": PROTOCOL if count else ""}
        protocol["images_left_out"] = dict.fromkeys(("precision", "recall"), "it is so") if count else {}
        write_json(path, protocol | {"text": {"name": "pictures", "sequence": 65}, "tasks": ""})
        if shown:
            path.with_name("samples.png").write_bytes(f"{model}'s picture".encode())


def write_speed():
    """What measure_speed leaves of an image model, made up: 1.25 times as fast in each phase, a fifth fewer MACs."""
    rows = [
        {"round": 0, "model": model, "phase": phase, "tokens": 128, "images": 2, "seconds": seconds}
        for model, seconds in (("dense", 0.5), ("pruned", 0.4)) for phase in ("prefill", "decode", "images")
    ]  # fmt: skip
    dense = {"parameters": 2e6, "prefill_macs": 1e6, "decode_macs": 1e6, "images_macs": 1e9}
    pruned = {name: 0.75 * size for name, size in dense.items()}
    Path("data/speed").mkdir(parents=True)
    write_manifest(Path("data/speed"), {"pruned": sha256_of(MANIFEST)})
    told = {
        "state": "measured", "layout": "hetero", "prompt": 64, "generate": 32, "batch": 2, "repeats": 1, "warmup": 0,
        "device": "CPU (x86_64)", "threads": 2, "dtype": "float32", "attention": "sdpa", "guidance_scale": 1.75,
        "codes": 64, "dense": dense | speeds(rows, "dense"), "pruned": pruned | speeds(rows, "pruned"),
        "ratio": ratios(rows, dense, pruned),
    }  # fmt: skip
    write_json(Path("metrics/speed.json"), told)


def text():
    return " ".join(PAGE.read_text().split())


def short_lines(capsys):
    """Words of each line of the short table."""
    capsys.readouterr()
    assert report.show() == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_figures_of_samples_are_told_with_their_protocol_and_difference(workspace):
    write_images()
    assert run() == 0
    assert '<th scope="row">FID</th><td>12.50</td><td>15.75</td><td>+3.25</td><td>lower</td>' in text()
    assert '<th scope="row">recall</th><td>0.600</td><td>0.600</td><td>+0.000</td><td>higher</td>' in text()
    assert "8 samples of 4 classes, &lt;guided&gt; by 1.75, seed 0; FID on features of a small classifier." in text()
    assert "<b>12.50 → 15.75</b><span>FID of 8 samples" in text()
    assert "classified as their class" not in text()
    assert "Not measured: precision, recall (it is so)." in text()


def test_pictures_stand_side_by_side_in_the_page_itself(workspace):
    write_images()
    assert run() == 0
    page = Elements(PAGE.read_text().replace("<img ", "<br "))  # has no end, as br
    sources = [attributes["src"] for tag, attributes in page.found if tag == "br" and "src" in attributes]
    told = [base64.b64decode(source.removeprefix("data:image/png;base64,")) for source in sources]
    assert told == [b"dense's picture", b"pruned's picture"]
    assert not page.open
    first = outputs()
    assert run() == 0
    assert outputs() == first


@pytest.mark.parametrize("width", [64, 1024])
def test_small_pictures_keep_their_pixels(width, workspace):
    write_images()
    for model in SAMPLED:
        write_picture(Path(f"data/evaluation/{model}/samples.png"), torch.zeros(3, 2, width, dtype=torch.uint8))
    assert run() == 0
    assert ('class="small"' in text()) == (width == 64)


@pytest.mark.parametrize("sampled", [True, False])
def test_perplexity_is_called_that_of_codes(sampled, workspace, capsys):
    write_images(count=8 * sampled, shown=sampled)
    write_attention()
    assert run() == 0
    assert '<th scope="col">perplexity of codes</th>' in text()
    assert "Perplexity of the codes of held-out images" in text()
    assert "Perplexity on the evaluation text" not in text()
    assert "On images that the solver never saw" in text()
    assert ["perplexity", "of", "codes", "29.09", "44.07"] in short_lines(capsys)
    assert ("What it draws" in text()) == sampled


def test_samples_without_a_feature_network_are_shown_without_figures(workspace):
    none = dict.fromkeys(SAMPLED["dense"])
    write_images(sampled={"dense": none, "pruned": none})
    assert run() == 0
    assert "FID of" not in text()
    assert "What it draws" in text()
    assert "<img " in text()
    assert list(json.loads(Path("metrics/summary.json").read_text())) == ["perplexity", "perplexity_dense", "sparsity"]
    assert Path("data/report/plots/images.csv").read_text().count("\n") == 1


def test_runs_are_compared_by_the_figures_of_samples(workspace, capsys):
    write_images()
    assert run() == 0
    figures = json.loads(Path("metrics/summary.json").read_text())
    assert (figures["fid"], figures["fid_dense"]) == (15.75, 12.5)
    assert (figures["precision"], figures["recall_dense"]) == (0.7, 0.6)
    assert "accuracy" not in figures
    assert ["FID", "12.50", "15.75"] in short_lines(capsys)
    with Path("data/report/plots/images.csv").open() as file:
        assert [(row["model"], row["fid"]) for row in csv.DictReader(file)] == [("dense", "12.5"), ("pruned", "15.75")]


def test_text_models_are_told_without_images(workspace):
    assert run() == 0
    summary = json.loads(Path("data/report/summary.json").read_text())
    assert summary["images"] is None
    for words in ("What it draws", "codes", "<img "):
        assert words not in text()


def test_samples_of_two_protocols_are_never_put_side_by_side(workspace, capsys):
    write_images()
    path = Path("data/evaluation/pruned/protocol.json")
    write_json(path, json.loads(path.read_text()) | {"images": "seed 1"})
    assert run() == 2
    assert "the images of the two models was measured in two ways" in capsys.readouterr().err


def test_images_a_second_are_told_beside_what_the_macs_promise(workspace, capsys):
    write_images()
    write_speed()
    assert run() == 0
    assert "<b>1.25 \N{MULTIPLICATION SIGN}</b><span>as fast as the dense model in drawing images" in text()
    assert (
        "An image of 64 codes, 2 at once, takes the dense model 0.250 s and the pruned one 0.200 s: 1.25 times as fast"
        in text()
    )
    assert "where its MACs would make it 1.33 times as fast" in text()
    assert "2 images, guidance scale 1.75; 1 rounds" in text()
    assert json.loads(Path("metrics/summary.json").read_text())["images"] == pytest.approx(1.25)
    assert ["images", "a", "second", "4.0", "5.0"] in short_lines(capsys)
