"""A copy of the project in a git repository of its own, with fewer tokens, driven by DVC."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.helpers.committed import EVERY_STAGE, ROOT, Project, copied

REDUCED: dict[str, Any] = {
    "compute": {"chunk": 4},
    "calibration": {"sequences": 8, "length": 128},
    "methods": {"admm": {"iterations": 4, "selections": 4, "penalties": 2, "refine_steps": 3}},
    "evaluate": {
        "attention": {"sequences": 2, "length": 64},
        "perplexity": {"window": 128, "stride": 128, "windows": 8},
        "tasks": {"limit": 5, "max_length": 256},
    },
}


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """The project after its first `dvc repro`; wheels that the checkout has are not downloaded again."""
    folder = tmp_path_factory.mktemp("project")
    made = copied(folder)
    wheels = folder / ".cache/wheels"
    wheels.mkdir(parents=True)
    for wheel in (ROOT / ".cache/wheels").glob("*.whl"):
        shutil.copy2(wheel, wheels)
    made.change(**REDUCED)
    made.commit("the project")
    assert sorted(made.repro()) == sorted(EVERY_STAGE)
    for wheel in wheels.glob("*.whl"):
        (ROOT / ".cache/wheels").mkdir(parents=True, exist_ok=True)
        if not (ROOT / ".cache/wheels" / wheel.name).exists():
            shutil.copy2(wheel, ROOT / ".cache/wheels")
    made.commit("results")
    return made
