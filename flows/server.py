"""Checks the Prefect server that PREFECT_API_URL names."""

from __future__ import annotations

import urllib.error
import urllib.request

from prefect.settings import PREFECT_API_URL

from flows.errors import FlowError

ADVICE = "start one with `prefect server start` and export PREFECT_API_URL=http://127.0.0.1:4200/api, or unset it"


def check_server(needed: bool = False) -> None:
    """Raise FlowError if the server that PREFECT_API_URL names does not answer; if it names none, only if `needed`.

    Without one, Prefect starts a server of its own for a run; such a server schedules nothing.
    """
    url = PREFECT_API_URL.value()  # of the environment, or of Prefect's profile
    if not url:
        if needed:
            raise FlowError(f"PREFECT_API_URL: schedules need a Prefect server, got none: {ADVICE}")
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except (urllib.error.URLError, ValueError, OSError) as error:
        raise FlowError(f"PREFECT_API_URL: no Prefect server answers at {url} ({error}): {ADVICE}") from None
