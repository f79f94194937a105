"""tests/mutation: which mutants are made, and that a fork with a mutant tells what notices it."""

import json
import subprocess
import sys

import pytest

from tests.helpers.committed import ROOT
from tests.mutation.mutants import Mutant, again, meaning, mutant, sample, sites_of
from tests.mutation.results import read, table

CODE = '''"""Sums."""

from __future__ import annotations


def total(values: list[float] | None, start: float = 0) -> float | None:
    for value in values or []:
        start = start + value
    return start


def pairs(a, b):
    return list(zip(a, b, strict=True))
'''
TESTS = """
from stages.linalg.sums import total

def test_total():
    assert total([1.0, 2.0]) == 3.0

def test_nothing():
    assert total(None) == 0
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "stages" / "linalg").mkdir(parents=True)
    for package in ("stages", "stages/linalg"):  # or the project's own package comes before it
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "stages" / "linalg" / "sums.py").write_text(CODE)
    (tmp_path / "test_sums.py").write_text(TESTS)
    return tmp_path


def every_mutant() -> list[Mutant]:
    made = [mutant("stages/linalg/sums.py", CODE, *choice) for site in sites_of(CODE) for choice in site.choices]
    return [one for one in made if one is not None]


def test_every_mutant_parses_and_means_something_else(tree):
    sources = [one.source(tree) for one in every_mutant()]
    assert len(sources) > 8
    assert {meaning(source) for source in sources}.isdisjoint({None, meaning(CODE)})


def test_annotations_and_guards_are_no_faults():
    lines = {one.line: one.after for one in every_mutant()}
    assert not any("strict" in after for after in lines.values())
    assert lines.get(6, "").count("float | None") != 0, "only the default on the signature's line is mutated"


def test_a_sample_is_drawn_by_its_seed(tree):
    drawn = [[one.identity for one in sample(tree, 24, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_mutant_is_found_again_where_its_line_has_moved_to(tree):
    wanted = every_mutant()[0]
    (tree / "stages" / "linalg" / "sums.py").unlink()
    (tree / "stages" / "walk").mkdir()
    (tree / "stages" / "walk" / "moved.py").write_text("import math\n\n" + CODE)
    found = again(tree, wanted)
    assert found is not None
    assert (found.path, found.line) == ("stages/walk/moved.py", wanted.line + 2)
    assert again(tree, Mutant(wanted.path, 1, wanted.operator, 0, wanted.before, "gone")) is None


def test_a_fork_tells_what_notices_the_mutant_and_leaves_the_file_as_it_was(tree):
    script = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import tests.mutation.worker as worker
for name in [name for name in sys.modules if name.split(".")[0] == "stages"]:
    del sys.modules[name]
sys.path.insert(0, ".")
path, code = Path("stages/linalg/sums.py"), Path("stages/linalg/sums.py").read_text()
mutants = {{
    "wrong": code.replace("start + value", "start - value"),
    "nowhere": code.replace("list(zip", "tuple(zip"),
    "unimportable": code.replace("def total", "def sum"),
    "hangs": code.replace("return start", "while True: pass"),
}}
told = {{}}
for name, changed in mutants.items():
    worker.START = 3.0 if name == "hangs" else 60.0
    told[name] = worker.killed_by(path, changed, ["test_sums.py"], 0.0)
print(json.dumps(told))
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "wrong": "test_sums.py::test_total", "nowhere": "", "unimportable": "import", "hangs": "time",
    }  # fmt: skip
    assert (tree / "stages" / "linalg" / "sums.py").read_text() == CODE


def test_the_docs_tell_the_last_run():
    results = read()
    assert len(results["mutants"]) >= 300
    assert all(row["killed_by"] is not None for row in results["mutants"])
    assert table(results) in (ROOT / "docs" / "mutation.md").read_text(encoding="utf-8")


def test_nine_in_ten_are_killed_and_every_survivor_is_judged():
    mutants = read()["mutants"]
    left = [row for row in mutants if not row["killed_by"]]
    assert 10 * len(left) <= len(mutants)
    assert [row["after"] for row in left if not row.get("verdict")] == []
