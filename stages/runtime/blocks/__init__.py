"""The work of single blocks: filed in the block store; done here, on threads or on a Dask cluster.

A stage says what each block's work is and under which key its result is filed; who does it, and whether
Prefect sees it as a task, is decided here. A result in the store is never made again.
"""

from __future__ import annotations

import logging
import os
import urllib.error
import urllib.request

from stages.params import Workers
from stages.runtime.blocks.contract import BlockRunner
from stages.runtime.blocks.plain import PlainRunner

SERVER = "PREFECT_API_URL"
log = logging.getLogger("secateur")


def runner_of(workers: Workers) -> BlockRunner:
    """Prefect's, where PREFECT_API_URL names a server that answers; else the plain one."""
    url = os.environ.get(SERVER)
    if url and _answers(url):
        from stages.runtime.blocks.prefect_tasks import PrefectRunner

        return PrefectRunner(workers)
    return PlainRunner(workers)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            return True
    except (urllib.error.URLError, ValueError, OSError) as error:
        log.warning("the Prefect server at %s does not answer (%s): going on without it", url, error)
        return False
