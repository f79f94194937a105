"""Inside the copy of the tree: runs the mutants of a results file that have not been run, or its survivors again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from tests.mutation.covering import Covering
from tests.mutation.mutants import again
from tests.mutation.results import mutant_of, read, survivors, write
from tests.mutation.worker import killed_by, preload
from tests.mutation.worker import run as tests_run

FIRST = 12
"""Tests that are run before the others are so much as imported: they kill most mutants."""


def within(tests: list[str], seconds: dict[str, float], budget: float) -> list[str]:
    """The first tests, as many as take `budget` seconds together, but one at least."""
    chosen, left = list[str](), budget
    for test in tests:
        if chosen and seconds[test] > left:
            break
        chosen.append(test)
        left -= seconds[test]
    return chosen


def withdraw(content: dict[str, Any], killers: list[str], seconds: dict[str, float]) -> None:
    """Kills by tests that fail here without a mutant too do not count: their mutants wait for the next call."""
    if killers:
        _, failed = tests_run(killers, sum(seconds[test] for test in killers), stop=False)
        content["unsound"] = sorted({*content.get("unsound", []), *failed})
        for row in content["mutants"]:
            if row["killed_by"] in failed:
                print(f"{row['killed_by']} fails without a mutant", flush=True)
                row["killed_by"] = None


def run(results: Path, maps: Path, seconds: float, budget: float, rooms: list[str]) -> None:
    root, end = Path.cwd(), time.monotonic() + seconds
    content = read(results)
    covering = Covering(maps, root)
    preload()
    killers = set[str]()
    for row in content["mutants"]:
        mutant = mutant_of(row)
        if row["killed_by"] is None and mutant.room in rooms and time.monotonic() < end:
            unsound = content.get("unsound", [])
            every = [test for test in covering.tests(mutant.path, mutant.line) if test not in unsound]
            tests = within(every, covering.seconds, budget)
            print(f"{mutant.path}:{mutant.line} {len(tests)} of {len(every)} tests\n  + {mutant.after}", flush=True)
            row["tests"], row["covering"] = len(tests), len(every)
            row["killed_by"] = ""
            for part in (tests[:FIRST], tests[FIRST:]):
                if part and not row["killed_by"]:
                    usual = sum(covering.seconds[test] for test in part)
                    row["killed_by"] = killed_by(root / mutant.path, mutant.source(root), part, usual)
            print("  " + (row["killed_by"] or "SURVIVED"), flush=True)
            killers.update({row["killed_by"]} & covering.seconds.keys())
            write(content, results)
    withdraw(content, sorted(killers), covering.seconds)
    write(content, results)


def run_survivors(results: Path, tests: list[str]) -> None:
    root = Path.cwd()
    content = read(results)
    preload()
    for row in survivors(content):
        mutant = again(root, mutant_of(row))
        print(f"{row['path']}:{row['line']}\n  + {row['after']}", flush=True)
        if mutant is None:
            print("  GONE: its line has changed", flush=True)
            continue
        if mutant.identity != mutant_of(row).identity:
            print(f"  now {mutant.path}:{mutant.line}\n  + {mutant.after}", flush=True)
        row["killed_by"] = killed_by(root / mutant.path, mutant.source(root), tests, 120)
        row["survived_at_first"] = True
        print("  " + (row["killed_by"] or "SURVIVED"), flush=True)
        write(content, results)


if __name__ == "__main__":
    if Path(sys.argv[2]).is_dir() and list(Path(sys.argv[2]).glob("*.json")):
        run(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
    else:
        run_survivors(Path(sys.argv[1]), sys.argv[2:])
