"""Chooses who runs the blocks of a stage: Prefect where a server answers, else this process and its workers."""

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
    """A PrefectRunner where PREFECT_API_URL names a server that answers, else a PlainRunner."""
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
