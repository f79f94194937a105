"""experiments/llamagen: its stages, run reduced, make every figure and picture; its parts do what they say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image

from stages.params.yamlfile import read_yaml, yaml_text
from tests.helpers.committed import ROOT, merge

FOLDER = ROOT / "experiments/llamagen"
SET, SPARSITY, SAMPLES = "digits", 0.2, 40
REDUCED = {
    "images": {"train": 120, "validation": 20, "test": 200},
    "tokenizer": {"steps": 4},
    "classifier": {"steps": 4},
    "model": {"steps": 4, "blocks": 2, "shift": 0},
    "prune": {
        "sparsities": [SPARSITY],
        "seeds": [0],
        "samples": SAMPLES,
        "calibration": 4,
        "windows": 50,
        "shown": [SPARSITY],
    },
}


@pytest.fixture
def experiment(monkeypatch):
    """Imports a module of the experiment as its stages do."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name):
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """A copy of the experiment after all commands of its dvc.yaml, for the digits, with fewer images and steps."""
    place = tmp_path_factory.mktemp("experiment")
    shutil.copy(ROOT / "params.yaml", place)
    folder = place / "experiments/llamagen"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("data", "results", "__pycache__"))
    settings = read_yaml(folder / "params.yaml")
    settings["sets"][SET] = merge(settings["sets"][SET], REDUCED)
    (folder / "params.yaml").write_text(yaml_text(settings), encoding="utf-8")
    stages = read_yaml(folder / "dvc.yaml")["stages"]
    scripts = [re.fullmatch(r"python (\w+)\.py \$\{item\}", one["do"]["cmd"])[1] for one in stages.values()]
    first = scripts.index("prune")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for together in (scripts[:first], ["prune"], scripts[first + 1 :]):  # prune forks: it may not have computed
        code = "".join(f"import {name}\n{name}.main({SET!r})\n" for name in together)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment, check=False, capture_output=True, text=True
        )
        assert not done.returncode, done.stderr[-3000:]
    return folder


def test_every_method_is_measured_beside_the_dense_model(reduced):
    settings = read_yaml(reduced / "params.yaml")["sets"][SET]["prune"]
    rows = json.loads((reduced / f"results/{SET}/runs.json").read_text(encoding="utf-8"))
    assert [row["method"] for row in rows] == ["dense", *settings["methods"]]
    dense, *pruned = rows
    for row in pruned:
        assert row["parameters"] < dense["parameters"]
        assert row["fid"] != dense["fid"]
    for row in rows:
        assert row["count"] == SAMPLES
        assert 0 <= row["accuracy"] <= 1
        assert all(row[name] is not None for name in ("fid", "sfid", "inception_score", "precision", "recall"))
    table = (reduced / f"results/{SET}/table.md").read_text(encoding="utf-8")
    assert f"| newton | {SPARSITY:.0%} | {pruned[1]['fid']:.2f} |" in table


def test_scores_are_of_images_that_the_model_drew_in_both_halves(reduced):
    for workspace in (reduced / f"data/{SET}/workspaces/0").iterdir():
        facts = json.loads((workspace / "data/texts/manifest.json").read_text(encoding="utf-8"))["calibration"]
        assert facts["tokens"] == 2 * 10 * 4 * facts["sequence"]
        values = read_yaml(workspace / "params.yaml")
        assert values["fetch"]["calibration"]["source"] == "generated"
        assert values["fetch"]["calibration"]["seed"] != values["evaluate"]["images"]["seed"]


def test_the_grid_has_a_row_a_model_and_a_column_a_class(reduced):
    with Image.open(reduced / f"results/{SET}/grid.png") as grid:
        assert grid.width > 2 * grid.height


def test_shapes_are_drawn_again_by_the_same_seed_and_differ_within_a_class(experiment):
    draw = experiment("images").draw_shapes
    labels = torch.arange(10).repeat(3)
    first, again, other = (draw(labels, 24, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(image.flatten().tolist()) for image in first}) == 30


def test_codes_that_are_not_used_begin_again_at_vectors(experiment):
    room = experiment("tokenizer")
    codebook = torch.nn.Parameter(torch.zeros(4, 2))
    optimiser = torch.optim.AdamW([codebook])
    codebook.grad = torch.ones(4, 2)
    optimiser.step()
    kept = codebook.detach()[:2].clone()
    room.revive(codebook, torch.tensor([3.0, 1.0, 0.0, 0.0]), torch.full((5, 2), 7.0), optimiser)
    assert torch.equal(codebook[:2], kept)
    assert (codebook[2:] == 7).all()
    assert not optimiser.state[codebook]["exp_avg"][2:].any()
    assert optimiser.state[codebook]["exp_avg"][:2].all()


def test_intervals_are_students_of_the_differences(experiment):
    interval = experiment("table").interval
    assert interval([1.0, 2.0, 3.0]) == "+2.00 (-0.48 to +4.48)"  # t = 4.303 at two degrees of freedom
    assert interval([-1.5]) == "-1.50"


def test_one_training_image_in_ten_has_no_class(experiment):
    room = experiment("model")
    settings = {"model": {"width": 16, "channels": 16, "blocks": 1, "heads": 2}}
    tokenizer = type("Tokenizer", (), {"config": type("Config", (), {"num_embeddings": 8, "num_patches": 2})})
    model = room.new_model(settings, tokenizer, classes=3)
    labels = room.dropped(model, torch.zeros(10_000, dtype=torch.int64), 0.1)
    assert set(labels.tolist()) == {0, 3}
    assert 0.08 < float((labels == 3).float().mean()) < 0.12
