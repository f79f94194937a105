"""Keys of finished blocks hash the code that makes them: all of it, and no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import grimp
import pytest

from stages import extract, solve, statistics
from stages.artifacts.code import PACKAGE, closure, code_of, code_version, is_neutral, only_described
from stages.artifacts.manifest import read_json
from stages.measuring.quality import stored_losses
from stages.methods import registry
from stages.solving import walk
from stages.solving.gates import plan as gate_plan
from stages.solving.gates import scales, training
from stages.solving.linear import plan as linear_plan
from stages.solving.rotation import walk as rotation_walk
from stages.solving.units import plan as unit_plan
from stages.solving.units import scores
from stages.walk import backward

MAKERS = {
    module.__name__.removeprefix("stages."): Path(module.__file__)
    for module in (
        backward, extract, gate_plan, linear_plan, rotation_walk, scales, scores, solve, statistics, stored_losses,
        training, unit_plan, walk,
    )
}  # fmt: skip
MAKERS |= {name: PACKAGE / "methods" / registry.find(name).family / f"{name}.py" for name in registry.names()}
"""Modules whose code keys hash: those that make blocks, and the methods."""
EVALUATE = "measuring.quality.stored_losses"


@pytest.fixture(scope="module")
def graph():
    """The package's imports as another tool finds them."""
    return grimp.build_graph(PACKAGE.name, cache_dir=None)


def found_by(graph, name):
    """Files that a module comes to in `graph`, neutral ones not followed, with the packages they are in."""
    found, left = set(), [name]
    while left:
        one = left.pop()
        place = PACKAGE.parent.joinpath(*one.split("."))
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if one in found or is_neutral(path.relative_to(PACKAGE.parent).as_posix()):
            continue
        found.add(one)
        left += graph.find_modules_directly_imported_by(one) | ({one.rpartition(".")[0]} - {""})
    places = [PACKAGE.parent.joinpath(*one.split(".")) for one in found]
    files = {place / "__init__.py" if place.is_dir() else place.with_suffix(".py") for place in places}
    return {path for path in files if path.name != "__init__.py" or not only_described(path.read_text())}


@pytest.mark.parametrize("name", MAKERS)
def test_the_code_of_a_key_is_all_that_its_module_imports(name, graph):
    path = MAKERS[name]
    assert closure([path]) == found_by(graph, ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))


@pytest.mark.parametrize("name", ["extract", "statistics", "solve", EVALUATE, "admm", "newton"])
def test_an_edit_of_any_file_it_follows_from_changes_a_key_and_of_no_other(name, tmp_path):
    copied = shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    maker, follows = copied / MAKERS[name].relative_to(PACKAGE), closure([MAKERS[name]])
    before = code_version([maker], copied)
    assert before == code_version([MAKERS[name]])
    others = [path for path in copied.rglob("*.py") if PACKAGE / path.relative_to(copied) not in follows]
    for path in others:
        path.write_bytes(path.read_bytes() + b"# edited")
    assert others
    assert code_version([maker], copied) == before
    for path in sorted(follows):
        edited, source = copied / path.relative_to(PACKAGE), path.read_bytes()
        edited.write_bytes(source + b"# edited")
        assert code_version([maker], copied) != before, path
        edited.write_bytes(source)
    assert code_version([maker], copied) == before


@pytest.mark.parametrize(
    ("maker", "file", "follows"),
    [
        ("solve", "solve.py", True),
        ("solve", "solving/linear/assignment.py", True),
        ("solve", "solving/linear/allocation.py", True),
        ("solve", "artifacts/tensorfile.py", True),
        ("solve", "linalg/kernels/select_cpu.py", True),
        ("solve", "methods/linear/wanda.py", False),
        ("solve", "methods/linear/admm.py", False),
        ("solve", "methods/units/newton.py", False),
        ("admm", "linalg/kernels/admm_cpu.py", True),
        ("extract", "models/classes/modeling_hetero.py", True),
        ("extract", "models/classes/modeling_sliced.py", True),
        ("extract", "artifacts/tokens.py", True),
        ("statistics", "linalg/gram.py", True),
        (EVALUATE, "measuring/quality/perplexity.py", True),
        (EVALUATE, "models/loading/load.py", True),
        (EVALUATE, "measuring/quality/tasks.py", False),
        (EVALUATE, "solve.py", False),
        ("solve", "reporting/page.py", False),
        ("solve", "runtime/stage.py", False),
        ("solve", "params/pruning.py", False),
    ],
)
def test_what_follows_from_what(maker, file, follows):
    assert (PACKAGE / file in closure([MAKERS[maker]])) is follows


def test_a_file_of_the_same_name_elsewhere_is_another(tmp_path):
    paths = [tmp_path / "stages" / folder / "x.py" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text("")
    assert len({code_version([path], tmp_path / "stages") for path in paths}) == 2


def test_relative_and_lazy_imports_and_packages_are_followed(tmp_path):
    package = tmp_path / "stages"
    for name, source in {
        "one.py": "def f():\n    from .room import two\n",
        "room/__init__.py": "from stages import four",
        "room/two.py": "from ..three import name",
        "three.py": "import json",
        "four.py": "",
        "five.py": "",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    found = {path.relative_to(package).as_posix() for path in closure([package / "one.py"], package)}
    assert found == {"one.py", "room/__init__.py", "room/two.py", "three.py", "four.py"}


def test_methods_that_a_method_finds_by_name_are_in_its_code():
    start = registry.load("attention_iht", {"start": "sparsegpt"})
    assert registry.modules_of("attention_iht", start) == {
        "stages.methods.attention.attention_iht",
        "stages.methods.linear.sparsegpt",
    }
    assert registry.modules_of("wanda", registry.load("wanda")) == {"stages.methods.linear.wanda"}


def test_an_edit_of_solve_makes_its_blocks_anew_and_one_of_another_method_does_not(workspace, monkeypatch, tmp_path):
    from stages.artifacts import code

    w = workspace(solve={"method": "wanda", "inputs": "dense"})
    w.run("extract", "statistics", "solve")
    read = Path.read_bytes

    def edited(name):
        monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == PACKAGE / name))
        code._hash.cache_clear()
        w.run("solve")
        monkeypatch.setattr(Path, "read_bytes", read)
        code._hash.cache_clear()
        return read_json(tmp_path / "metrics/cost/solve.json")["blocks_made"]

    made = {name: edited(name) for name in (
        "methods/linear/admm.py", "methods/linear/wanda.py", "solving/linear/assignment.py", "runtime/stage.py",
    )}  # fmt: skip
    assert list(made.values()) == [0, 3, 3, 0], made


def test_nothing_is_found_by_name_but_methods():
    """What `import_module` finds no walker sees: only the registry may, whose modules are named to `code_of`."""
    dynamic = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "import_module(" in path.read_text(encoding="utf-8") or "__import__(" in path.read_text(encoding="utf-8")
    }
    assert dynamic == {
        "methods/registry.py",
        "models/export/fresh.py",
    }  # fresh: `import secateur` in a process of its own


def test_code_is_known_by_function_class_and_name():
    assert len({code_of(solve.main), code_of(backward.Backward), code_of("stages.extract")}) == 3
    assert code_of(solve.main) == code_of("stages.solve") != code_of("stages.solve", "stages.methods.linear.admm")
