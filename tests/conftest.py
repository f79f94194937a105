"""What a session of tests starts once: a Prefect server, and the process that commands are forks of."""

from __future__ import annotations

import os

import pytest

from tests.helpers.forks.start import DVC, LIBRARIES, PREFECT, ForkServer
from tests.helpers.prefect_server import prefect_server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Environment in which a Prefect server answers."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Home of the processes that have imported the libraries of stages, and of dvc."""
    home = tmp_path_factory.mktemp("forks")
    started = [
        ForkServer(home, ("stages",), LIBRARIES, os.environ),
        ForkServer(home, ("dvc",), DVC, os.environ),  # without Prefect, which sets up logging for itself
    ]
    yield from serving(home, *started)


@pytest.fixture(scope="session")
def flow_forks(forks, server):
    """The same home, and the process that has imported the libraries of flows and knows the Prefect server."""
    yield from serving(forks, ForkServer(forks, ("flows", "prefect"), (*DVC, *PREFECT), server))


def serving(home, *servers):
    """Give the home when the servers are ready, and close them in the end."""
    for server in servers:
        server.wait_until_ready()
    yield home
    for server in servers:
        server.close()
