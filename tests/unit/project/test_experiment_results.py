"""The committed tables of experiments are what their stages write of the committed figures and settings."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path

import pytest

from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT

EXPERIMENTS = ROOT / "experiments"
RESULTS = Path("results")


@pytest.fixture
def experiment(monkeypatch):
    """Imports a module of an experiment as its stage does: in its folder, beside its other modules."""
    before = set(sys.modules)

    def load(folder, name):
        monkeypatch.chdir(EXPERIMENTS / folder)
        monkeypatch.syspath_prepend(str(EXPERIMENTS / folder))
        return importlib.import_module(name), read_yaml(Path("params.yaml"))

    yield load
    for name in set(sys.modules) - before:
        if str(EXPERIMENTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def committed(name):
    return (RESULTS / name).read_text(encoding="utf-8")


def rows_of(name):
    with (RESULTS / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_numerical(experiment):
    table, params = experiment("numerical", "table")
    found = json.loads(committed("table.json"))
    assert set(table.runs_of(params["table"]).values()) | {"dense"} == set(found)
    assert table.summary(params["table"], found) == committed("table.md")


def test_numerical_sweeps(experiment):
    _, params = experiment("numerical", "table")
    settings = params["samples"]
    pairs = {(count, at) for count in settings["sequences"] for at in settings["sparsities"]}
    assert {(int(row["sequences"]), float(row["sparsity"])) for row in rows_of("samples.csv")} == pairs
    assert [float(row["sparsity"]) for row in rows_of("speed.csv")] == params["speed"]["sparsities"]


def test_maiht(experiment):
    table, params = experiment("maiht", "table")
    found = json.loads(committed("table.json"))
    runs = table.runs_of(params["table"])
    assert set(runs.values()) | {"dense"} == set(found)
    assert table.table(params["table"], runs, found) == committed("table.md")


def test_attention_table(experiment):
    table, params = experiment("attention_matrix", "table1")
    found = json.loads(committed("table1.json"))
    runs = table.runs_of(params["table1"])
    assert set(runs.values()) | {"dense"} == set(found)
    assert table.table(params["table1"], runs, found) == committed("table1.md")


@pytest.mark.parametrize(("name", "data"), [("figure2", "synthetic"), ("figure3", "real")])
def test_attention_figures(experiment, monkeypatch, name, data):
    figure, _ = experiment("attention_matrix", name)
    monkeypatch.setattr(figure, "draw", lambda *_: None)
    written = {}
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: written.update({path.name: text}))
    figure.main()
    assert written == {f"{data}.md": committed(f"{data}.md")}


def test_gated_heads(experiment):
    figure, params = experiment("d_gating", "figure")
    rows = rows_of("runs.csv")
    assert figure.summary([figure.read(row) for row in rows]) == committed("table.md")
    asked = {
        (run["method"], str(run.get("depth", 2)), str(strength), str(seed))
        for run in params["train"]["runs"] for strength in run["strengths"] for seed in run["seeds"]
    }  # fmt: skip
    assert {(row["method"], row["depth"], row["strength"], row["seed"]) for row in rows} == asked


@pytest.mark.parametrize("name", ["shapes", "digits"])
def test_llamagen(experiment, name):
    table, params = experiment("llamagen", "table")
    settings = params["sets"][name]["prune"]
    rows = json.loads(committed(f"{name}/runs.json"))
    assert table.summary(settings, rows) == committed(f"{name}/table.md")
    pairs = {(method, at) for method in settings["methods"] for at in settings["sparsities"]} | {("dense", 0.0)}
    asked = {(*pair, seed) for pair in pairs for seed in settings["seeds"]}
    assert {(row["method"], row["sparsity"], row["seed"]) for row in rows} == asked
    assert {row["count"] for row in rows} == {settings["samples"]}
    assert committed(f"{name}/table.md") in (ROOT / "docs/experiments/llamagen.md").read_text(encoding="utf-8")
