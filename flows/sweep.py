"""Every combination of some parameters, each a DVC experiment, and a leaderboard of them.

    python -m flows.sweep --method magnitude,wanda,sparsegpt --sparsity 0.3,0.5,0.7
    python -m flows.sweep --list calibration.sequences=8,16,32 solve.method=wanda

Shared stages run once. A sweep that was stopped goes on: what is known is restored, not computed. Results:
sweeps/<name>/leaderboard.md, .csv and .html, and `dvc exp show`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger

from flows.errors import FlowError, quiet_tracebacks
from flows.leaderboard import Entry, write_leaderboard
from flows.pipeline import pipeline, run_flow
from flows.workspace import name_of, project

SHORT = {"method": "solve.method", "sparsity": "solve.sparsity"}
SWEEPS = Path("sweeps")


@flow(name="sweep", validate_parameters=True)
def sweep(lists: dict[str, list[Any]], overrides: list[str] | None = None) -> str:
    """Run the pipeline for every combination of the values in `lists` ({parameter: values}).

    overrides: parameters that all of them share. Gives the path of the leaderboard. A combination that fails
    is told in it and does not stop the others; the flow fails at the end.
    """
    quiet_tracebacks()
    logger = get_run_logger()
    if not lists or not all(lists.values()):
        raise FlowError("sweep: expected at least one parameter with values, e.g. --sparsity 0.3,0.5")
    shared = list(overrides or [])
    chosen = combinations(lists)
    folder = project() / SWEEPS / name_of([*(f"{name}={','.join(map(str, lists[name]))}" for name in lists), *shared])
    entries = list[Entry]()
    for index, values in enumerate(chosen, 1):
        logger.info("%d of %d: %s", index, len(chosen), told(values))
        try:
            found = pipeline([*shared, *(f"{name}={value}" for name, value in values.items())])
        except FlowError as error:
            logger.error("%s: %s", told(values), error)
            entries.append(Entry(values, error=str(error)))
        else:
            entries.append(Entry(values, found["experiment"], found["metrics"], found["cost"]))
        write_leaderboard(folder, tuple(lists), entries)
    failed = [entry for entry in entries if entry.error]
    if failed:
        raise FlowError(f"{len(failed)} of {len(entries)} runs failed, see {folder / 'leaderboard.md'}")
    return str(folder / "leaderboard.md")


def combinations(lists: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """All combinations, the last parameter changing fastest."""
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def told(values: Mapping[str, Any]) -> str:
    """A combination in words."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def add_lists(parser: argparse.ArgumentParser) -> None:
    """The options that `lists_of` reads."""
    for short, full in SHORT.items():
        parser.add_argument(f"--{short}", metavar="VALUE,VALUE", help=f"sweep over values of {full}")
    parser.add_argument("--list", action="append", default=[], metavar="name=VALUE,VALUE", help="sweep over any")


def lists_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """The lists that the command line asks for, by parameter."""
    given = {full: getattr(options, short) for short, full in SHORT.items() if getattr(options, short)}
    for one in options.list:
        name, equals, values = one.partition("=")
        if not equals:
            raise FlowError(f"--list: expected parameter=value,value, got {one}")
        given[name] = values
    return {name: [value for value in values.split(",") if value] for name, values in given.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="parameters that all runs share")
    add_lists(parser)
    options = parser.parse_args()
    board = run_flow(lambda: sweep(lists_of(options), options.overrides))
    print(Path(board).read_text(encoding="utf-8"))
    print(f"{Path(board).with_suffix('.html')}\n\nAlso: dvc exp show")


if __name__ == "__main__":
    main()
