"""dvc.yaml names the source files that a stage's result follows from: a change of any of them runs it again."""

from __future__ import annotations

import pytest

from stages.artifacts.code import PACKAGE, closure
from stages.methods import registry
from stages.params.yamlfile import read_yaml

ROOT = PACKAGE.parent
STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]
EVERY_STAGE = pytest.mark.parametrize("name", sorted(STAGES))


def within(path, places):
    """Whether a file is one of some files, or in one of some folders."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def code_of(name):
    """Source files that a stage's result follows from, as block keys see it; solve finds methods by their names."""
    methods = [registry.find(one).module for one in registry.names()] if name == "solve" else []
    modules = [STAGES[name]["cmd"].split()[2], *methods]
    paths = [ROOT.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    return {path.relative_to(ROOT).as_posix() for path in closure(paths)}


def named(name):
    """Dependencies of a stage under stages/."""
    return [place for place in STAGES[name]["deps"] if place.startswith("stages/")]


@EVERY_STAGE
def test_a_stage_names_all_the_code_that_it_runs(name):
    assert {path for path in code_of(name) if not within(path, named(name))} == set()


@EVERY_STAGE
def test_a_stage_names_no_code_that_it_does_not_run(name):
    assert [place for place in named(name) if not any(within(path, [place]) for path in code_of(name))] == []
