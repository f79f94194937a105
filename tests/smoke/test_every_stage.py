"""One run of every stage, in this process, on a model of two blocks: what a change must not break, in seconds."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from stages import evaluate
from stages.artifacts.linears import LINEARS
from stages.params.yamlfile import read_yaml, yaml_text
from stages.runtime.stage import run_stage
from tests.helpers.committed import CHEAP, ROOT, merge, save_source
from tests.helpers.images import DRAWN, SEQUENCE
from tests.helpers.llamagen import converted

SOURCES = {
    "model": {"source": "local", "path": "source/model"},
    "calibration": {"source": "local", "path": "source/calibration.jsonl"},
    "evaluation": {"source": "local", "path": "source/evaluation.jsonl", "label_column": "topic"},
}
IMAGES = {
    "fetch": {
        "model": {"source": "local", "path": "source"},
        "calibration": DRAWN,
        "evaluation": {**DRAWN, "images": 1, "seed": 1},
    },
    "calibration": {"sequences": 8, "length": SEQUENCE},
    "evaluate": {
        "attention": {"length": SEQUENCE},
        "perplexity": {"window": SEQUENCE, "stride": SEQUENCE},
        "images": {"count": 4, "shown": 4},
        "speed": {"repeats": 0},
    },
}
"""Settings of an image model, over those of CHEAP."""
STAGES = ("fetch", "extract", "statistics", "solve", "assemble", "compare_attention", "measure_speed")


def run(name):
    module = import_module(f"stages.{name}")
    assert run_stage(name, module.main, getattr(module, "SECTIONS", ())) == 0


def run_all(changes):
    """Run every stage by the committed params.yaml with CHEAP and `changes` laid over it."""
    values = merge(merge(read_yaml(ROOT / "params.yaml"), CHEAP), changes)
    Path("params.yaml").write_text(yaml_text(values), encoding="utf-8")
    for name in STAGES:
        run(name)
    for which in ("dense", "pruned"):
        main = partial(evaluate.main, which=which)
        assert run_stage("evaluate", main, evaluate.SECTIONS, cost_name=f"evaluate_{which}") == 0
    run("report")


def perplexity_of(which):
    return json.loads(Path(f"metrics/{which}.json").read_text(encoding="utf-8"))["perplexity"]["value"]


@pytest.mark.parametrize(
    ("solve", "keeps_shape"),
    [({"method": "admm", "sparsity": 0.5}, True), ({"method": "obs_units", "sparsity": 0.25}, False)],
    ids=["weights", "units"],
)
def test_every_stage_runs_and_the_report_has_both_models(solve, keeps_shape, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_source(Path("source"))
    run_all({"fetch": SOURCES, "solve": solve})
    manifest = json.loads(Path("data/pruned/pruning_manifest.json").read_text(encoding="utf-8"))
    assert (manifest.get("layout", {}).get("name", "dense") == "dense") == keeps_shape
    assert AutoModelForCausalLM.from_pretrained("data/pruned").config.num_hidden_layers == 2
    summary = json.loads(Path("data/report/summary.json").read_text(encoding="utf-8"))
    assert summary["solve"]["method"] == solve["method"]
    page = Path("data/report/index.html").read_text(encoding="utf-8")
    for which in ("dense", "pruned"):
        assert f"{perplexity_of(which):.2f}" in page
    if keeps_shape:
        rows = LINEARS.read(Path("data/solution/linears.parquet"))
        assert all(2 * row["kept"] == row["weights"] for row in rows)


def test_every_stage_runs_for_a_model_of_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    converted(tmp_path).rename("source")
    run_all({**IMAGES, "solve": {"method": "obs_units", "sparsity": 0.3}})
    manifest = json.loads(Path("data/pruned/pruning_manifest.json").read_text(encoding="utf-8"))
    assert manifest["layout"]["class"] == "LlamaGenForImageGeneration"
    assert manifest["budget"]["removed"] >= 0.25
    page = Path("data/report/index.html").read_text(encoding="utf-8")
    for which in ("dense", "pruned"):
        assert f"{perplexity_of(which):.2f}" in page
        assert Path(f"data/evaluation/{which}/samples.png").is_file()
