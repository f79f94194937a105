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
from typing import Any

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import construct_schedule

from flows.errors import FlowError
from flows.pipeline import pipeline, run_flow
from flows.server import check_server
from flows.sweep import add_lists, lists_of, sweep
from flows.workspace import project

QUEUE = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)


def serve(options: argparse.Namespace) -> None:
    """Serve the sweep where there are lists, else the pipeline; raises FlowError without a server or a schedule."""
    project()
    check_server(needed=True)
    schedule = check_schedule(options.cron, options.interval)
    lists = lists_of(options)
    parameters: dict[str, Any] = {"overrides": options.overrides, **({"lists": lists} if lists else {})}
    served: Any = sweep if lists else pipeline
    served.serve(name=options.name, parameters=parameters, limit=1, global_limit=QUEUE, **schedule)


def check_schedule(cron: str | None, interval: str | None) -> dict[str, Any]:
    """When to run, as Prefect's `serve` takes it. Raises FlowError for what is no schedule."""
    try:
        schedule = {"cron": cron} if interval is None else {"interval": float(interval)}
        construct_schedule(**schedule)
    except (ValueError, OverflowError):  # pydantic's error is a ValueError
        expected = f"--cron: expected five fields such as '0 2 * * *', got {cron!r}"
        if interval is not None:
            expected = f"--interval: expected seconds between runs, more than 0, got {interval}"
        raise FlowError(expected) from None
    return schedule


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", help="five fields, e.g. '0 2 * * *' for every night at two")
    when.add_argument("--interval", help="seconds between runs")
    parser.add_argument("--name", default="scheduled", help="of the deployment (default: scheduled)")
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="parameters other than params.yaml's")
    add_lists(parser)
    options = parser.parse_args()
    run_flow(lambda: serve(options))


if __name__ == "__main__":
    main()
