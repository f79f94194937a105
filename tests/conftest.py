"""What a session of tests starts once: a Prefect server, and the process that commands are forks of."""

from __future__ import annotations

import pytest

from tests.helpers.forks.start import DVC, LIBRARIES, PREFECT, ForkServer, forked
from tests.helpers.prefect_server import prefect_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Environment in which a Prefect server answers."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="session")
def forks(tmp_path_factory, server):
    """Home of the processes that have imported the libraries of stages, and of dvc, prefect and flows."""
    home = tmp_path_factory.mktemp("forks")
    servers = [
        ForkServer(home, ("stages",), LIBRARIES, server),
        ForkServer(home, ("dvc",), DVC, server),  # without Prefect, which sets up logging for itself
        ForkServer(home, ("flows", "prefect"), (*DVC, *PREFECT), server),
    ]
    for made in servers:
        made.wait_until_ready()
    yield home
    for made in servers:
        made.close()


@pytest.fixture(scope="session")
def forked_environment(forks, server):
    """Environment in which a Prefect server answers and `python -m stages.x`, dvc, prefect and flows run in forks."""
    return forked(forks, server)
