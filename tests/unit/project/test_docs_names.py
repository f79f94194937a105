"""Every file, module, function, class and setting that pages and docstrings name in code is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stages.models.roles import ROLES
from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT
from tests.helpers.documented import pages

CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"<[\w.]+>")
PLACE = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
SOURCE_FILE = re.compile(r"(?<![\w/.*<>{}-])((?:[\w.-]+/)*\w+\.py|docs/[\w/.-]+\.md)\b")
SOURCE_NAME = re.compile(r"\b(?:stages|flows)(?:\.\w+)+\b")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_*][\w*]*)+")
TRACKED = {"stages", "flows", "tests", "benchmarks", "experiments", "docs", "tasks"}
WRITTEN = {"json", "safetensors", "html", "csv", "md", "lock"}
"""Endings of files that stages and DVC write."""

OBJECTS = {"problem": ("LinearProblem", "UnitProblem", "AttentionProblem"), "run": ("StageRun",)}
"""What docs call an object of these classes."""

ELSEWHERE = {"nn", "AutoModelForCausalLM"}
"""Names of torch and transformers."""

SETTINGS = read_yaml(ROOT / "params.yaml")
DVC_SETTINGS = {"cache.type"}


def named(page: Path) -> Iterator[str]:
    """Inline code of a page, with `*` for placeholders and without the arguments of calls.

    The table of mutants shows lines of the commit that was mutated: it is left out.
    """
    text = page.read_text(encoding="utf-8").partition("| survivor |")[0]
    for code in CODE.findall(FENCE.sub("", text)):
        yield re.sub(r"\(.*\)$", "", PLACEHOLDER.sub("*", code))


def is_place(name: str) -> bool:
    """Whether a name in code is that of a source file or of a folder of sources."""
    inside = "/" in name and name.split("/")[0] in TRACKED
    return bool(PLACE.fullmatch(name)) and (inside or name.endswith((".py", ".yaml", ".toml")))


def is_there(name: str) -> bool:
    """Whether a file or folder is tracked, by its path from the project's folder, or by its name where that is all."""
    places = [ROOT] if "/" in name else [ROOT, *(ROOT / folder for folder in TRACKED)]
    return any(True for place in places for _ in (place.rglob if place != ROOT else place.glob)(name))


def is_setting(name: str) -> bool:
    """Whether a dotted name is a parameter or section of params.yaml."""
    values = SETTINGS
    for part in name.split("."):
        if part == "*":
            return True
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def members(tree: ast.AST) -> set[str]:
    """Names that a module's or a class's body defines, annotates or assigns."""
    found = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("stages", "flows")
    for path in (ROOT / folder).rglob("*.py")
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
CLASSES = {node.name: members(node) for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)}


def is_known(name: str) -> bool:
    """Whether a dotted name is a setting, a role, a file that is written, a member of a class, or of a module."""
    first, _, rest = name.partition(".")
    if is_setting(name) or name in ROLES or name in DVC_SETTINGS or name.rpartition(".")[2] in WRITTEN:
        return True
    if first in CLASSES | OBJECTS:
        return any(rest in CLASSES[each] for each in OBJECTS.get(first, (first,)))
    if first in {"stages", "flows"}:
        owner, _, last = name.rpartition(".")
        return name in MODULES or "*" in name or (owner in TREES and last in members(TREES[owner]))
    return first in ELSEWHERE or (first not in SETTINGS and find_spec(first) is not None)


PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())


@PAGES
def test_code_in_a_line_ends_in_that_line_where_these_tests_see_it(page):
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if line.count("`") % 2] == []


@PAGES
def test_every_file_that_a_page_names_is_there(page):
    assert [name for name in named(page) if is_place(name) and not is_there(name)] == []


@PAGES
def test_every_dotted_name_on_a_page_is_known(page):
    dotted = [name for name in named(page) if NAME.fullmatch(name) and not is_place(name)]
    assert [name for name in dotted if not is_known(name)] == []


def test_every_source_file_and_name_that_the_sources_tell_of_is_there():
    missing = list[tuple[str, str]]()
    for path in [*MODULES.values(), ROOT / "params.yaml", ROOT / "dvc.yaml"]:
        text = path.read_text(encoding="utf-8")
        files = [name for name in SOURCE_FILE.findall(text) if not name.startswith("/")]
        missing += [(path.name, name) for name in files if not is_there(name) and not is_there(f"stages/{name}")]
        missing += [(path.name, name) for name in SOURCE_NAME.findall(text) if not is_known(name)]
    assert missing == []


@pytest.mark.parametrize("name", ["stages.walk.collect", "visit.BlockVisit", "solve.sparsty", "LinearProblem.input"])
def test_a_name_that_is_not_there_is_seen(name):
    assert not is_known(name)


@pytest.mark.parametrize("name", ["stages/runner.py", "models/streamed.py", "nowhere.py", "tests/unit/nowhere"])
def test_a_file_that_is_not_there_is_seen(name):
    assert is_place(name)
    assert not is_there(name)
