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

from dvc.utils.hydra import to_hydra_overrides
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException
from prefect import flow, get_run_logger

from flows.errors import FlowError, first_line, quiet_tracebacks
from flows.leaderboard import Entry, write_leaderboard
from flows.pipeline import pipeline, run_flow
from flows.workspace import project
from flows.worktree import run_name

SHORT = {"method": "solve.method", "sparsity": "solve.sparsity"}
SWEEPS = Path("sweeps")


@flow(name="sweep", validate_parameters=True)
def sweep(lists: dict[str, list[Any]], overrides: list[str] | None = None) -> str:
    """Run the pipeline for every combination of the values in `lists` ({parameter: values}).

    overrides: parameters that all of them share. Gives the path of the leaderboard. A combination that fails
    stands in it with its error and does not stop the others; the flow fails at the end.
    """
    quiet_tracebacks()
    logger = get_run_logger()
    if not lists or not all(lists.values()):
        raise FlowError("sweep: expected at least one parameter with values, e.g. --sparsity 0.3,0.5")
    shared = list(overrides or [])
    for name in lists:
        if any(override.partition("=")[0] == name for override in shared):
            raise FlowError(f"sweep: {name} has values to sweep over and one that all runs share: leave one out")
    lists = {name: [override_text(value) for value in values] for name, values in lists.items()}
    chosen = combinations(lists)
    folder = project() / SWEEPS / run_name([*(f"{name}={','.join(map(str, lists[name]))}" for name in lists), *shared])
    entries = list[Entry]()
    for index, values in enumerate(chosen, 1):
        logger.info("%d of %d: %s", index, len(chosen), combination_text(values))
        try:
            result = pipeline([*shared, *(f"{name}={value}" for name, value in values.items())])
        except FlowError as error:
            logger.error("%s: %s", combination_text(values), error)
            entries.append(Entry(values, error=str(error)))
        else:
            entries.append(Entry(values, result["experiment"], result["metrics"], result["cost"]))
        write_leaderboard(folder, tuple(lists), entries)
    failed = [entry for entry in entries if entry.error]
    if failed:
        raise FlowError(f"{len(failed)} of {len(entries)} runs failed, see {folder / 'leaderboard.md'}")
    return str(folder / "leaderboard.md")


def combinations(lists: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """All combinations, the last parameter changing fastest."""
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def override_text(value: Any) -> str:
    """A value as it stands in an override, name=value; strings are that already."""
    if isinstance(value, QuotedString):
        return value.with_quotes()
    if isinstance(value, list):
        return f"[{','.join(map(override_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{override_text(each)}' for key, each in value.items())}}}"
    return "null" if value is None else str(value)


def combination_text(values: Mapping[str, Any]) -> str:
    """A combination of values as a log shows it."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def add_lists(parser: argparse.ArgumentParser) -> None:
    """The options that `lists_of` reads."""
    for short, full in SHORT.items():
        parser.add_argument(f"--{short}", metavar="VALUE,VALUE", help=f"sweep over values of {full}")
    parser.add_argument("--list", action="append", default=[], metavar="name=VALUE,VALUE", help="sweep over any")


def lists_of(options: argparse.Namespace) -> dict[str, list[str]]:
    """The lists that the command line asks for, by parameter, as Hydra reads them: [0.1,0.2] is one value."""
    given = [f"{full}={getattr(options, short)}" for short, full in SHORT.items() if getattr(options, short)]
    lists = dict[str, list[str]]()
    for text in [*given, *options.list]:
        try:
            (parsed,) = to_hydra_overrides([text])
            values = parsed.sweep_iterator() if parsed.is_sweep_override() else [parsed.value()]
            values = [override_text(value) for value in values]
        except HydraException as error:
            raise FlowError(f"sweep: expected parameter=value,value, got {text}: {first_line(error)}") from None
        name = parsed.get_key_element()
        if name in lists:
            raise FlowError(f"sweep: {name} is given twice: expected all its values in one list")
        lists[name] = values
    return lists


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
