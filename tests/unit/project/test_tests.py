"""The tests themselves: what is shared is in tests/helpers, every folder of tests/unit is about a room of stages."""

from __future__ import annotations

import ast

import pytest

from tests.helpers.committed import ROOT

TESTS = ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
SHARED = {"helpers", "reference"}
OF_NO_ROOM = {"project"}
"""Folders of tests/unit about the project as a whole: its documents, its graph, its experiments."""


def imported(path):
    """Dotted names that a module imports, and those names in them that may be modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_module_is_imported(path):
    tests = [name for name in imported(path) if name.startswith("tests.") and name.split(".")[-1].startswith("test_")]
    assert not tests, "put what is shared into tests/helpers"


@pytest.mark.parametrize("folder", sorted(SHARED))
def test_what_is_shared_imports_only_what_is_shared(folder):
    for path in (TESTS / folder).rglob("*.py"):
        parts = {name.split(".")[1] for name in imported(path) if name.startswith("tests.")}
        assert parts <= SHARED, path


def test_every_folder_of_unit_tests_is_about_a_room_and_every_room_has_one():
    rooms = {path.parent.name for path in (ROOT / "stages").glob("*/__init__.py")}
    folders = {path.parent.name for path in (TESTS / "unit").glob("*/test_*.py")}
    assert folders == rooms | OF_NO_ROOM
    assert not list((TESTS / "unit").glob("test_*.py"))
