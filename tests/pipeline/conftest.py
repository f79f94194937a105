"""A copy of the project in a git repository of its own, with fewer tokens, driven by DVC."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.helpers.committed import EVERY_STAGE, ROOT, Project, copied
from tests.helpers.forks.start import forked

REDUCED: dict[str, Any] = {
    "compute": {"chunk": 4},
    "calibration": {"sequences": 4, "length": 128},
    "methods": {"admm": {"iterations": 2, "selections": 1, "penalties": 1, "refine_steps": 1}},
    "evaluate": {
        "attention": {"sequences": 2, "length": 64},
        "perplexity": {"window": 128, "stride": 128, "windows": 2},
        "speed": {"prompt": 16, "generate": 4, "repeats": 1, "warmup": 0},
        "tasks": {"limit": 2, "max_length": 128},
    },
}


@pytest.fixture(scope="session")
def project(tmp_path_factory, forks) -> Project:
    """The project after its first `dvc repro`. Its commands run in forks of processes that have the libraries imported.

    All stages are processes of their own in the first flow of tests/flows/test_documented.py. Wheels that the checkout
    has are not downloaded again.
    """
    folder = tmp_path_factory.mktemp("project")
    made = copied(folder)
    made.environment = forked(forks, made.environment)
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
