"""pre-commit, `make check`, the workflow and `.ci/run` check the same."""

from __future__ import annotations

import re

from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT


def recipe(target):
    """Commands of a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    body = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    return [line.strip() for line in body.splitlines()]


def test_pre_commit_has_the_checks_of_make_check():
    hooks = read_yaml(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == [line.replace("$(BIN)", ".venv/bin") for line in recipe("check")]


def test_ci_run_makes_targets_that_are_there():
    made = re.findall(r"^make (.+)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert made[0] == "install"
    assert {"check", "docs", "test"} <= set(made)
    assert all(recipe(target) for target in made if target != "install")


def test_the_workflow_calls_ci_run_on_the_oldest_python():
    steps = read_yaml(ROOT / ".github/workflows/ci.yml")["jobs"]["all"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    (python,) = [step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={python}"' in project
