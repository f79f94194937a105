"""The documentation site shows what is there: drawings of the project as it is, every figure, fields as lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from docs.site import drawings
from docs.site.docstrings import as_markdown
from stages.methods import registry
from stages.methods.linear.contract import Budget
from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT
from tests.helpers.documented import blocks
from tests.helpers.problems import make_problem
from tests.helpers.structured_problems import make_units


@pytest.mark.parametrize("name", sorted(drawings.DRAWINGS))
def test_committed_drawings_are_of_the_project_as_it_is(name):
    committed = (drawings.FOLDER / name).read_text(encoding="utf-8")
    assert committed == drawings.DRAWINGS[name](), "python docs/site/drawings.py draws it anew"


def test_every_room_is_drawn():
    rooms = {path.parent.name for path in (ROOT / "stages").glob("*/__init__.py")}
    assert rooms == drawings.ROOMS.keys() - {"errors"}


def test_stages_are_drawn_from_fetch_to_report():
    needs = drawings.direct_needs(read_yaml(ROOT / "dvc.yaml")["stages"])
    rows = drawings.rows_of(needs)
    assert (rows[0], rows[-1]) == (["fetch"], ["report"])
    row = {name: number for number, names in enumerate(rows) for name in names}
    assert all(row[before] < row[name] for name in needs for before in needs[name])


def test_the_gallery_has_every_committed_figure():
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    figures = [path for path in ROOT.glob("experiments/*/results/*") if path.suffix in {".png", ".svg"}]
    assert figures
    assert [path for path in figures if f"](../{path.relative_to(ROOT).as_posix()})" not in gallery] == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f": {page}\n" not in text} == set()


def test_methods_of_the_guide_are_methods():
    linear, units = (block for page, block in blocks("python") if page == "adding-a-method.md")
    problem = make_problem()
    names = dict[str, Any]()
    exec(linear, names)
    solution = names["Mine"](power=2.0)(problem, Budget(0.5))
    assert torch.equal(solution.keep, registry.load("magnitude")(problem, Budget(0.5)).keep)
    exec(units, names)
    scored, _ = make_units(12, 4)
    assert torch.allclose(names["MyScore"](power=0.5)(scored), registry.load("wanda_units")(scored))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps: how many,\n       at least 1.", "**Arguments**\n\n- `steps`: how many,\n    at least 1."),
        ("other: not an argument", "other: not an argument"),
        ("Departs:\n- in one way", "Departs:\n\n- in one way"),
        ("w_h * 2 of methods.<name>, `w_h`", "w\\_h \\* 2 of methods.&lt;name>, `w_h`"),
        ("With\n\n    w_h * 2", "With\n\n    w_h * 2"),
    ],
)
def test_docstrings_become_markdown(text, expected):
    assert as_markdown(text, {"steps"}, "Arguments") == expected
