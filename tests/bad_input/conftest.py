"""The good project, made once, and the shells that commands are run through."""

from __future__ import annotations

import os

import pytest

from tests.bad_input.project import (
    STAGES,
    ForkShell,
    RealShell,
    copy_project,
    environment_of,
    make_project,
    put_under_dvc,
    results_of,
)
from tests.helpers.forks.start import DVC, LIBRARIES, PREFECT, ForkServer

REAL = os.environ.get("SECATEUR_SHELL") == "1"


@pytest.fixture(scope="session")
def forked(tmp_path_factory):
    """Runs stages in forks of one process."""
    home = tmp_path_factory.mktemp("shell")
    modules = dict.fromkeys(f"stages.{stage.split()[0]}" for stage in STAGES)
    forks = ForkServer(home, ("stages",), (*LIBRARIES, *modules), environment_of(home))
    forks.wait_until_ready()
    yield ForkShell(forks, home)
    forks.close()


@pytest.fixture(scope="session")
def forked_flows(tmp_path_factory, prefect):
    """Runs flows in forks of another, which knows a Prefect server."""
    home = tmp_path_factory.mktemp("flows")
    forks = ForkServer(home, ("flows",), (*DVC, *PREFECT, "flows.serve"), {**environment_of(home), **prefect})
    forks.wait_until_ready()
    yield ForkShell(forks, home)
    forks.close()


@pytest.fixture(scope="session")
def shell(request):
    """Runs stages in forks; with SECATEUR_SHELL=1 each as a process of its own."""
    return RealShell() if REAL else request.getfixturevalue("forked")


@pytest.fixture(scope="session")
def flow_shell(request):
    """Runs flows in forks; with SECATEUR_SHELL=1 each as a process of its own."""
    return RealShell() if REAL else request.getfixturevalue("forked_flows")


@pytest.fixture(scope="session")
def prefect(server):
    """Variables that name a Prefect server that answers."""
    return {name: value for name, value in server.items() if name.startswith("PREFECT_")}


@pytest.fixture(scope="session")
def project(tmp_path_factory, forked):
    """A good project after all stages; tests work in copies."""
    folder = tmp_path_factory.mktemp("project")
    make_project(folder, forked)
    before = results_of(folder)
    yield folder
    assert results_of(folder) == before, "a test wrote into the project that others copy"


@pytest.fixture(scope="session")
def dvc_project(tmp_path_factory, project):
    """The same, known to git and DVC."""
    folder = tmp_path_factory.mktemp("dvc") / "project"
    copy_project(project, folder)
    put_under_dvc(folder)
    return folder
