"""What DVC shows of the project: its own stages, parameters and few metrics; experiments are a project of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from tests.helpers.committed import ROOT

EXPERIMENTS = ROOT / "experiments"


@pytest.fixture(scope="module")
def project():
    with Repo(str(ROOT)) as repo:
        yield repo


def test_the_project_has_the_stages_and_parameters_of_its_own_files_alone(project):
    assert {Path(stage.path).relative_to(ROOT).as_posix() for stage in project.index.stages} == {"dvc.yaml"}
    params = {Path(one.fs_path).relative_to(ROOT).as_posix() for one in project.index.params}
    assert params == {"params.yaml"}


def test_its_metrics_are_one_small_file(project):
    assert [Path(one.fs_path).relative_to(ROOT).as_posix() for one in project.index.metrics] == ["metrics/summary.json"]


def test_its_plots_are_files_that_the_report_always_writes(project):
    plots = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["plots"]
    read = {path for plot in plots for told in plot.values() for path in (*told["y"], *_files(told["x"]))}
    written = {"error_by_block", "sparsity_by_linear", "attention_by_block", "units_by_block", "speed", "perplexity"}
    written |= {"images"}
    assert read == {f"data/report/plots/{name}.csv" for name in written}  # test_report.py: in every run
    assert set(project.index._plot_sources) == read


def _files(axis):
    return axis if isinstance(axis, dict) else ()


def test_every_experiment_is_in_the_project_of_experiments():
    with Repo(str(EXPERIMENTS)) as repo:
        found = {Path(stage.path).parent for stage in repo.index.stages}
        deps = [Path(dep.fs_path) for stage in repo.index.stages for dep in stage.deps]
    assert found == {path.parent for path in EXPERIMENTS.glob("*/dvc.yaml")}
    for path in deps:
        assert path.exists() or "data" in path.parts or "results" in path.parts, path
        # .dvcignore reaches what is inside: a folder outside would count its __pycache__ and change with every run.
        assert not any(path.glob("**/*.py")) or path.is_relative_to(EXPERIMENTS), path
