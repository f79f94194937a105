"""Tables and the figure of results/real.csv, in the layout of Figure 3 of Liang et al., and by block.

Writes results/real.md and results/real.png; run in this folder.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.params.yamlfile import read_yaml

RESULTS = Path("results")
COLOURS = ("tab:green", "tab:orange", "tab:red", "tab:purple", "tab:brown", "silver", "tab:cyan", "tab:blue")
KINDS = {"held_out": "-", "calibration": ":"}
Row = dict[str, Any]


def main() -> None:
    """Write the tables and the figure."""
    settings = read_yaml(Path("params.yaml"))["real"]
    with (RESULTS / "real.csv").open(encoding="utf-8") as file:
        rows = [
            {name: text if name == "method" else float(text) for name, text in row.items()}
            for row in csv.DictReader(file)
        ]
    text = summary(rows, settings)
    (RESULTS / "real.md").write_text(text, encoding="utf-8")
    draw(rows, settings)
    print(text)


def chosen(rows: list[Row], **values: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def mean(rows: list[Row], which: str) -> float:
    """Mean of a column."""
    return sum(row[which] for row in rows) / len(rows)


def summary(rows: list[Row], settings: Row) -> str:
    """Markdown: the last block and the mean over blocks; over sparsities; over lengths."""
    last, base = max(row["block"] for row in rows), chosen(rows, length=settings["length"])
    blocks = sorted({row["block"] for row in base})
    listed = ", ".join(f"{block:.0f}" for block in blocks)
    parts = [f"Windows of {settings['length']} tokens; block {last:.0f}, and the mean over blocks {listed}"]
    head = [
        "held out / calibration",
        *(f"{place}, {s:.0%}" for s in settings["block_sparsities"] for place in ("last", "mean")),
    ]
    lines = []
    for method in settings["methods"]:
        line = [method]
        for sparsity in settings["block_sparsities"]:
            every = chosen(base, method=method, sparsity=sparsity)
            line += [both(chosen(every, block=last)), both(every)]
        lines.append([*line, f"{mean(chosen(base, method=method), 'cpu_seconds'):.1f}"])
    parts.append(table([*head, "CPU s a block"], lines))
    for column, values in (("sparsity", settings["sparsities"]), ("length", settings["lengths"])):
        fixed = {"length": settings["length"]} if column == "sparsity" else {"sparsity": 0.5}
        here = chosen(rows, block=last, **fixed)
        lines = [
            [m, *(both(chosen(here, method=m, **{column: value})) for value in values)] for m in settings["methods"]
        ]
        parts += [f"Block {last:.0f}, by {column}", table(["", *map(str, values)], lines)]
    return "\n\n".join(parts) + "\n"


def both(rows: list[Row]) -> str:
    """Held-out and calibration error, means over the rows."""
    return f"{mean(rows, 'held_out'):.4f} / {mean(rows, 'calibration'):.4f}"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def draw(rows: list[Row], settings: Row) -> None:
    """Draw errors of the last block against length and sparsity, and of all measured blocks; both texts."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    last, base = max(row["block"] for row in rows), chosen(rows, length=settings["length"])
    panels = (
        ("length", chosen(rows, block=last, sparsity=0.5), f"tokens of a window (block {last:.0f}, 50 %)"),
        ("sparsity", chosen(base, block=last), f"sparsity (block {last:.0f})"),
        ("block", chosen(base, sparsity=0.5), "block (50 %)"),
    )
    colours = dict(zip(settings["methods"], COLOURS, strict=False))
    for place, (column, found, label) in zip(axes, panels, strict=True):
        for method, colour in colours.items():
            _lines(place, chosen(found, method=method), column, colour)
        place.set_xlabel(label)
        place.set_yscale("log")
        place.spines[["top", "right"]].set_visible(False)
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(settings["lengths"], list(map(str, settings["lengths"])))
    axes[0].set_ylabel("relative error of the attention matrix")
    handles = [Line2D([], [], color=colour, label=method) for method, colour in colours.items()]
    handles += [
        Line2D([], [], color="black", linestyle=dots, label=kind.replace("_", " ")) for kind, dots in KINDS.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(RESULTS / "real.png", dpi=120)


def _lines(place: Axes, rows: list[Row], column: str, colour: str) -> None:
    rows = sorted(rows, key=lambda row: row[column])
    for kind, dots in KINDS.items():
        values = [row[column] for row in rows]
        place.plot(
            values,
            [row[kind] for row in rows],
            color=colour,
            linestyle=dots,
            linewidth=1.4,
            marker="." if dots == "-" else "",
        )


if __name__ == "__main__":
    main()
