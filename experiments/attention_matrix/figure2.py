"""Tables and the figure of results/synthetic.csv, in the layout of Figure 2 of Liang et al.

Writes results/synthetic.md and results/synthetic.png; run in this folder.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stages.params.yamlfile import read_yaml

RESULTS = Path("results")
OURS, WEIGHED = "Algorithm 1, fused W", "Algorithm 1, ranked by size of M ∘ W"
COLOURS = {
    OURS: "tab:blue",
    "magnitude, fused W": "tab:green",
    "Wanda, fused W": "tab:olive",
    "magnitude, W_Q and W_K": "tab:purple",
    "Wanda, W_Q and W_K": "tab:orange",
    "SparseGPT, W_Q and W_K": "tab:red",
}
COLUMNS = {"penalty": "λ", "tokens": "n", "sparsity": "sparsity"}

Row = dict[str, Any]


def main() -> None:
    """Write the tables and the figure."""
    settings = read_yaml(Path("params.yaml"))["synthetic"]
    with (RESULTS / "synthetic.csv").open(encoding="utf-8") as file:
        rows = [{name: value_of(name, text) for name, text in row.items()} for row in csv.DictReader(file)]
    text = summary(rows, settings)
    (RESULTS / "synthetic.md").write_text(text, encoding="utf-8")
    draw(rows, settings)
    print(text)


def value_of(name: str, text: str) -> Any:
    """Text of a table cell; empty where a method has no penalty."""
    if name == "method" or not text:
        return text
    return int(text) if name in ("inputs", "tokens", "seed") else float(text)


def chosen(rows: list[Row], **values: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def panel(rows: list[Row], settings: Row, column: str, inputs: int) -> list[Row]:
    """All seeds and methods of one panel, where only `column` varies; baselines have no λ and stand for every one."""
    base = {name: settings[name] for name in ("tokens", "sparsity", "scaling") if name != column} | {"inputs": inputs}
    return [row for row in chosen(rows, **base) if column == "penalty" or row["penalty"] in ("", settings["penalty"])]


def summary(rows: list[Row], settings: Row) -> str:
    """Markdown: the base setting, the columns of the figure, logits without a scale."""
    parts = [f"n = {settings['tokens']}, sparsity {settings['sparsity']}, logits times {settings['scaling']}"]
    parts += [base_table(rows, settings)]
    for column in COLUMNS:
        for inputs in settings["inputs"]:
            parts += [f"k = {inputs}, calibration / held out, means", panel_table(rows, settings, column, inputs)]
    unscaled = chosen(rows, scaling=1.0)
    names = {(row["method"], row["penalty"]): None for row in unscaled}
    lines = [[named(*one), *spreads(chosen(unscaled, method=one[0], penalty=one[1]))] for one in names]
    parts += [f"k = {settings['inputs'][0]}, logits as printed, without a scale"]
    return "\n\n".join([*parts, table(["", "calibration", "held out"], lines)]) + "\n"


def base_table(rows: list[Row], settings: Row) -> str:
    """Markdown table of every method, at the λ that is best on the calibration inputs where it has one."""
    panels = [panel(rows, settings, "penalty", inputs) for inputs in settings["inputs"]]
    lines = []
    for method in dict.fromkeys(row["method"] for row in panels[0]):
        line = [method]
        for found in panels:
            ours = chosen(found, method=method)
            means = {penalty: mean(chosen(ours, penalty=penalty)) for penalty in {row["penalty"] for row in ours}}
            best = min(means, key=means.__getitem__, default="")
            line += [power(best) if best else "", *spreads(chosen(ours, penalty=best))]
        lines.append(line)
    head = [name for inputs in settings["inputs"] for name in (f"k = {inputs}: λ", "calibration", "held out")]
    return table(["", *head], lines)


def panel_table(rows: list[Row], settings: Row, column: str, inputs: int) -> str:
    """Means over seeds, methods down, values of the column across."""
    found = panel(rows, settings, column, inputs)
    if column == "penalty":
        found = [row for row in found if row["penalty"]]
    values = sorted({row[column] for row in found})
    head = [COLUMNS[column], *(power(one) if column == "penalty" else str(one) for one in values)]
    lines = []
    for method in (*COLOURS, WEIGHED):
        here = [chosen(found, method=method, **{column: one}) for one in values]
        if here[0]:
            lines.append([method, *(f"{mean(one):.2f} / {mean(one, 'held_out'):.2f}" for one in here)])
    return table(head, lines)


def mean(rows: list[Row], which: str = "calibration") -> float:
    """Mean of an error over seeds."""
    return sum(row[which] for row in rows) / len(rows)


def spreads(rows: list[Row]) -> list[str]:
    """Mean and range over seeds, of the error on the calibration inputs and on fresh ones."""
    if not rows:
        return ["", ""]
    kinds = ("calibration", "held_out")
    ranges = [(min(row[kind] for row in rows), max(row[kind] for row in rows)) for kind in kinds]
    return [
        f"{mean(rows, kind):.3f} ({low:.3f} to {high:.3f})" for kind, (low, high) in zip(kinds, ranges, strict=True)
    ]


def named(method: str, penalty: float | str) -> str:
    """Method, and its λ if it has one."""
    return f"{method}, λ = {power(penalty)}" if isinstance(penalty, float) else method


def power(penalty: float) -> str:
    """λ as a power of two."""
    return f"2^{math.log2(penalty):g}"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])


def draw(rows: list[Row], settings: Row) -> None:
    """A row for each k; against λ, n and the sparsity; lines are means over seeds, shades their range."""
    figure = Figure(figsize=(11.5, 7.2), layout="constrained")
    grid = figure.subplots(len(settings["inputs"]), len(COLUMNS), sharey=True, sharex="col", squeeze=False)
    for axes, inputs in zip(grid, settings["inputs"], strict=True):
        for place, column in zip(axes, COLUMNS, strict=True):
            found = panel(rows, settings, column, inputs)
            for method in COLOURS:
                _lines(place, chosen(found, method=method), column, method)
            place.set_ylim(0, 1.4)
            place.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(f"k = {inputs}\nrelative error of the attention matrix")
    for place, (column, label) in zip(grid[-1], COLUMNS.items(), strict=True):
        place.set_xlabel(label)
        if column != "sparsity":
            place.set_xscale("log", base=2)
    grid[-1, 1].set_xticks(settings["lengths"], list(map(str, settings["lengths"])))
    handles = [
        Line2D([], [], **_style(method), label=method.replace("W_Q and W_K", "$W_Q$, $W_K$")) for method in COLOURS
    ]
    handles += [Line2D([], [], color="grey", label="calibration inputs")]
    handles += [Line2D([], [], color="grey", linestyle=":", label="fresh inputs")]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(RESULTS / "synthetic.png", dpi=120)


def _lines(place: Axes, rows: list[Row], column: str, method: str) -> None:
    for which, dots in (("calibration", "-"), ("held_out", ":")):
        style = _style(method) | {"linestyle": dots}
        if column == "penalty" and not rows[0]["penalty"]:
            place.axhline(mean(rows, which), **style)
            continue
        values = sorted({row[column] for row in rows})
        errors = [[row[which] for row in chosen(rows, **{column: value})] for value in values]
        place.plot(values, [sum(one) / len(one) for one in errors], **style)
        low, high = list(map(min, errors)), list(map(max, errors))
        place.fill_between(values, low, high, color=COLOURS[method], alpha=0.1, linewidth=0)


def _style(method: str) -> dict[str, Any]:
    """Magnitude and SparseGPT on W_Q and W_K lie on each other: the one is a broad line under the other."""
    broad = method == "magnitude, W_Q and W_K"
    return {"color": COLOURS[method], "linewidth": 4 if broad else 1.4, "alpha": 0.4 if broad else 1}


if __name__ == "__main__":
    main()
