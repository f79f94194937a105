"""dvc.yaml names the source files that a stage's result follows from: a change of any of them runs it again."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from stages import methods
from stages.yamlfile import read_yaml

ROOT = Path(__file__).parents[2]
STAGES = read_yaml(ROOT / "dvc.yaml")["stages"]
NEUTRAL = frozenset(
    f"stages/{name}"
    for name in (
        "__init__.py", "artifacts", "blocks", "clock.py", "errors.py", "memory.py", "methods.py", "params", "places.py",
        "runner.py", "tensorfile.py", "workspace.py", "yamlfile.py",
    )
)  # fmt: skip
"""What finds, carries and times results, and is not followed: it changes none."""
SHORTFALLS = ("stages/linalg/correction.py", "stages/linalg/unit.py")
LEFT_OUT = {
    "fetch": {"stages/models/compute.py"},
    "extract": {"stages/linalg/gram.py", *SHORTFALLS},
    "statistics": {*SHORTFALLS},
    "assemble": {
        "stages/entering.py", "stages/kernels/threads.py", "stages/linalg/gram.py", "stages/linalg/principal.py",
        "stages/slicing_table.py", "stages/walk.py", *SHORTFALLS,
    },
    "compare_attention": {"stages/walk.py", "stages/linalg/gram.py", *SHORTFALLS},
}  # fmt: skip
"""What stages come to but take nothing from that results follow from: types, a check, a walk beside a reader."""
EVERY_STAGE = pytest.mark.parametrize("name", sorted(STAGES))


def within(path, places):
    """Whether a file is one of some files, or in one of some folders."""
    return any(path == place or path.startswith(f"{place}/") for place in places)


def file_of(module):
    """The file of a module of this package; None if there is none."""
    place = ROOT.joinpath(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
    return found[0].relative_to(ROOT).as_posix() if found else None


def imported(path):
    """Files under stages/ that a file imports, wherever in it."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [file_of(name) or file_of(node.module) for name in names]
        elif isinstance(node, ast.Import):
            found = [file_of(alias.name) for alias in node.names]
        else:
            continue
        yield from (file for file in found if file and file.startswith("stages/"))


def followed(path):
    """The file and every file that its code comes to, but for neutral ones."""
    found, left = set(), [path]
    while left:
        one = left.pop()
        if one not in found and not within(one, NEUTRAL):
            found.add(one)
            left += imported(one)
    return found


def code_of(name):
    """Source files that a stage runs; solve finds methods by their names."""
    path = file_of(STAGES[name]["cmd"].split()[2])
    rooms = [f"stages/{room}/{method}.py" for room in methods.SHARED for method in methods.names(room)]
    return set().union(*map(followed, [path, *(rooms if name == "solve" else [])]))


def named(name):
    """Dependencies of a stage under stages/."""
    return [place for place in STAGES[name]["deps"] if place.startswith("stages/")]


@EVERY_STAGE
def test_a_stage_names_all_the_code_that_it_runs(name):
    missing = {path for path in code_of(name) if not within(path, named(name))}
    assert missing == LEFT_OUT.get(name, set())


@EVERY_STAGE
def test_a_stage_names_no_code_that_it_does_not_run(name):
    ran = code_of(name)
    assert [place for place in named(name) if not any(within(path, [place]) for path in ran | NEUTRAL)] == []
