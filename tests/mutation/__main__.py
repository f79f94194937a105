"""Mutation testing: `python -m tests.mutation map`, then `run`, and `again` once tests are written; `show` counts.

Says which faults in the mathematical rooms the unit tests would not notice. docs/mutation.md explains.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.mutation.mutants import ROOMS, sample
from tests.mutation.results import RESULTS, read, table, write

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "mutation"
TREE, MAP = CACHE / "tree", CACHE / "map"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def copy_tree() -> None:
    """A copy of the files that git knows or would add, where mutants may be written; what was compiled there stays."""
    TREE.mkdir(parents=True, exist_ok=True)
    listed = git("ls-files", "-co", "--exclude-standard", "-z").split("\0")
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for path in TREE.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and path.relative_to(TREE).as_posix() not in names:
            path.unlink()
    for name in names:
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, TREE / name)


def in_copy(*arguments: str, compiled: bool = False) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(TREE),
        "PYTHONDONTWRITEBYTECODE": "" if compiled else "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "NUMBA_CACHE_DIR": str(CACHE / "kernels"),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, "-m", *arguments], cwd=TREE, env=environment, check=True)


def source() -> str:
    """Hash of stages/: line numbers of a map hold for one source only."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "stages").rglob("*.py")):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def collect_map(tests: list[str]) -> None:
    copy_tree()
    folders = tests or [f"tests/unit/{path.name}" for path in sorted((ROOT / "tests/unit").iterdir()) if path.is_dir()]
    MAP.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        in_copy("tests.mutation.coverage_map", str(MAP / f"{Path(folder).name}.json"), folder, compiled=True)
    (MAP / "source").write_text(source())


def run(size: int, seed: int, rooms: list[str], seconds: float, budget: float) -> None:
    """Goes on with the sample where an earlier call with a time limit stopped."""
    if (MAP / "source").read_text() != source():
        raise SystemExit("stages/ has changed since the map of tests was made: run `python -m tests.mutation map`")
    results = read() if RESULTS.exists() else {}
    head = {"commit": git("rev-parse", "--short", "HEAD").strip(), "size": size, "seed": seed, "source": source()}
    if any(results.get(name) != head[name] for name in ("size", "seed", "source")):
        write(head | {"mutants": [asdict(one) | {"killed_by": None} for one in sample(ROOT, size, seed)]})
    copy_tree()
    in_copy("tests.mutation.session", str(RESULTS), str(MAP), str(seconds), str(budget), *rooms)


def again(tests: list[str]) -> None:
    """Survivors of the last run, against `tests` of today's tree."""
    copy_tree()
    in_copy("tests.mutation.session", str(RESULTS), *tests)


def show() -> None:
    """Prints the table of docs/mutation.md."""
    results = read()
    print(table(results))
    if waiting := sum(row["killed_by"] is None for row in results["mutants"]):
        print(f"\n{waiting} mutants have not been run yet")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("map").add_argument("tests", nargs="*", help="folders of tests (default: all of tests/unit)")
    command = commands.add_parser("run")
    command.add_argument("--size", type=int, default=300, help="mutants, equally many of every room")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS, help="run the mutants of these only")
    command.add_argument("--seconds", type=float, default=1e9, help="stop after these; the next call goes on")
    command.add_argument("--budget", type=float, default=60, help="usual seconds of the tests run against a mutant")
    commands.add_parser("again").add_argument("tests", nargs="+", help="files, folders or names of tests")
    commands.add_parser("show")
    given = vars(parser.parse_args())
    {"map": collect_map, "run": run, "again": again, "show": show}[given.pop("command")](**given)


if __name__ == "__main__":
    main()
