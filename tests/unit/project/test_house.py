"""The house: rooms that a stranger finds the way in. What import-linter does not say of it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from stages.artifacts.code import PACKAGE
from stages.methods import registry
from tests.helpers.committed import ROOT

MODULES = sorted(path for folder in ("stages", "flows") for path in (ROOT / folder).rglob("*.py"))
LONGEST_MODULE, LARGEST_CLASS, LONGEST_MAIN = 250, 160, 60
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


def lines_of(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_stages_holds_the_stages_and_their_rooms():
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert len(modules) <= 12
    assert len(rooms) <= 13
    layers = CONTRACTS[0]["layers"]
    named = [set(re.findall(r"\w+", layer)) for layer in layers]
    assert set.union(*named) == (modules | rooms) - {"__init__", "cli"}
    assert sum(bool(layer & rooms) for layer in named) <= 5


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_and_classes_have_one_idea_that_fits_a_screenful_or_five(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE
    large = [
        node.name for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef) and lines_of(node) > LARGEST_CLASS
    ]
    assert not large


def test_the_main_functions_of_stages_are_short():
    mains = {
        path.stem: lines_of(node)
        for path in PACKAGE.glob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    }
    assert "solve" in mains
    assert {name: length for name, length in mains.items() if length > LONGEST_MAIN} == {}


def test_only_methods_and_the_table_of_families_ask_which_family_a_method_is_of():
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(isinstance(node, ast.Attribute) and node.attr == "family" for node in ast.walk(tree(path)))
        or any(isinstance(node, ast.Name) and node.id == "Family" for node in ast.walk(tree(path)))
    }
    assert {path for path in asking if not path.startswith("methods/")} == {"solving/families.py"}


def test_every_family_has_a_way_to_be_solved():
    from stages.solving.families import FAMILIES

    assert set(FAMILIES) == set(registry.TITLES)


def test_packages_hold_a_docstring_alone_but_for_those_that_are_a_room_of_their_own():
    """Keys of finished blocks leave them out, and a reader looks for code in a file with a name."""
    coded = {
        path.parent.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("__init__.py")
        if any(not isinstance(node, ast.Expr) for node in tree(path).body)
    }
    assert coded <= {"stages", "stages/params", "stages/runtime/blocks"}
