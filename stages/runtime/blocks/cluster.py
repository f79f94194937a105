"""Opens the Dask cluster of params.yaml's section `workers`: a local one, or the scheduler at an address."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stages.errors import ParameterError
from stages.params import Workers

WAIT = 20
"""Seconds to wait for a scheduler that is said to be there."""


def local_cluster(workers: Workers) -> dict[str, Any]:
    """Arguments of a LocalCluster: processes of one thread each, which no limit on memory pauses."""
    return {
        "n_workers": workers.count,
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": ":0",
        "memory_limit": 0,
    }


@contextmanager
def dask_client(workers: Workers) -> Iterator[Any]:
    """A client of the cluster at `workers.address`, or of a local one of `workers.count` processes.

    Raises ParameterError if nothing answers there, or Dask is not installed.
    """
    check_cluster(workers)
    import distributed

    if workers.address:
        with distributed.Client(workers.address, timeout=WAIT) as client:
            yield client
    else:
        with distributed.LocalCluster(**local_cluster(workers)) as cluster, distributed.Client(cluster) as client:
            yield client


def check_cluster(workers: Workers) -> None:
    """Raise ParameterError unless Dask is installed and the scheduler at `workers.address`, if given, answers."""
    try:
        import distributed
    except ImportError:
        raise ParameterError(
            "workers.runner: dask is not installed here: pip install 'secateur[dask]', or use threads"
        ) from None
    # What fails in a worker is raised here, and what dies is started again: Dask's own account of it is not needed.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")  # read by workers when they start
    if workers.address:
        try:
            distributed.Client(workers.address, timeout=WAIT).close()
        except (OSError, ValueError) as error:
            raise ParameterError(
                f"workers.address: no Dask scheduler answers at {workers.address} ({error}): start one with "
                "`dask scheduler`, or use null for a local cluster"
            ) from None
