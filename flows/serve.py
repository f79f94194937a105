"""Serve the pipeline on a schedule, from the project's folder, until stopped.

    prefect server start                                     once, in another terminal
    export PREFECT_API_URL=http://127.0.0.1:4200/api
    python -m flows.serve --cron "0 2 * * *" [solve.sparsity=0.6 ...]
    python -m flows.serve --interval 3600 --sparsity 0.3,0.5,0.7

With --method, --sparsity or --list the sweep is served, else the pipeline. One run at a time: a run that is
due while another is under way waits for it.
"""

from __future__ import annotations

import argparse
import os
import urllib.error
import urllib.request
from typing import Any

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy

from flows.errors import FlowError
from flows.pipeline import pipeline, run_flow
from flows.sweep import add_lists, lists_of, sweep
from flows.workspace import project

QUEUE = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


def serve(options: argparse.Namespace) -> None:
    """Serve the flow that the options ask for. Raises FlowError without a server or a schedule."""
    project()
    _check_server()
    lists = lists_of(options)
    parameters: dict[str, Any] = {"overrides": options.overrides, **({"lists": lists} if lists else {})}
    served: Any = sweep if lists else pipeline
    schedule = {"cron": options.cron} if options.cron else {"interval": options.interval}
    served.serve(name=options.name, parameters=parameters, limit=1, global_limit=QUEUE, **schedule)


def _check_server() -> None:
    url = os.environ.get("PREFECT_API_URL", "")
    advice = "start one with `prefect server start` and export PREFECT_API_URL=http://127.0.0.1:4200/api"
    if not url:
        raise FlowError(f"PREFECT_API_URL: schedules need a Prefect server, got none: {advice}")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except (urllib.error.URLError, ValueError, OSError) as error:
        raise FlowError(f"PREFECT_API_URL: no Prefect server answers at {url} ({error}): {advice}") from None


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", help="five fields, e.g. '0 2 * * *' for every night at two")
    when.add_argument("--interval", type=float, help="seconds between runs")
    parser.add_argument("--name", default="scheduled", help="of the deployment (default: scheduled)")
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="parameters other than params.yaml's")
    add_lists(parser)
    options = parser.parse_args()
    run_flow(lambda: serve(options))


if __name__ == "__main__":
    main()
