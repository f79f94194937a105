"""`python -m stages.solve --list` and params.yaml: every method is there, once, with its settings."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stages.methods import registry
from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT

TITLES = {title: room for room, title in registry.TITLES.items()}


def parts():
    """By room, the lines beneath its title."""
    found = {}
    for line in registry.describe_methods().splitlines():
        if line in TITLES:
            part = found.setdefault(TITLES[line], [])
        elif line:
            part.append(line)
    return found


@pytest.mark.parametrize("room", registry.TITLES)
def test_every_method_of_a_room_is_listed_with_its_paper_and_settings(room):
    lines = parts()[room]
    assert [line.split()[0] for line in lines[::2]] == list(registry.names(room))
    for name, first, second in zip(registry.names(room), lines[::2], lines[1::2], strict=True):
        assert first.endswith(registry.find(name).settings.paper)
        for setting, default in registry.settings_of(name).items():
            assert f"{setting}={default}" in second


def test_structured_methods_tell_what_auto_stands_for_and_layer_wise_ones_their_scopes():
    lines = [line for part in parts().values() for line in part]
    told = {first.split()[0]: second for first, second in zip(lines[::2], lines[1::2], strict=True)}
    assert "allocation global, compensation weights" in told["newton"]
    assert "allocation uniform, compensation none" in told["llm_pruner"]
    assert "scope linear or row or model" in told["magnitude"]


def test_the_command_lists_and_runs_nothing(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "stages.solve", "--list"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == registry.describe_methods() + "\n"
    assert not list(tmp_path.iterdir())


def test_params_yaml_has_the_defaults_of_every_method():
    listed = read_yaml(ROOT / "params.yaml")["methods"]
    assert listed == {name: registry.settings_of(name) for name in registry.names()}
