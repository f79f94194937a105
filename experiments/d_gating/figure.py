"""The paper's Figure 1 and a table of the heads left, of results/runs.csv.

Writes results/figure.svg and results/table.md; run in this folder.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path("results")
GONE, TOLD = 1e-6, 1e-3
"""Of the largest head's norm: below the first a head is gone; naive SGD is said to leave all above the second."""
COLOURS = {"gated": "tab:blue", "gated, D = 3": "tab:green", "naive": "tab:orange", "proximal": "tab:grey"}
STYLES = ["-", "--", "-.", ":"]
QUANTILES = {"Max": 1.0, "Q75": 0.75, "Q50": 0.5, "Q25": 0.25, "Min": 0.0}
Row = dict[str, Any]


def main() -> None:
    """Write the table and the figure."""
    with (RESULTS / "runs.csv").open(encoding="utf-8") as file:
        rows = [read(row) for row in csv.DictReader(file)]
    text = summary(rows)
    (RESULTS / "table.md").write_text(text, encoding="utf-8")
    draw(rows)
    print(text)


def read(row: dict[str, str]) -> Row:
    """A row with numbers, the name of its method, and the norms of the heads, ascending."""
    numbers: Row = {name: float(row[name]) for name in ("strength", "seed", "epoch", "loss", "accuracy", "cpu_seconds")}
    name = row["method"] if int(row["depth"]) == 2 else f"{row['method']}, D = {row['depth']}"
    norms = sorted(float(value) for key, value in row.items() if key.startswith("head_"))
    return numbers | {"method": name, "epochs": int(row["epochs"]), "norms": norms}


def chosen(rows: list[Row], **values: Any) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def ends(rows: list[Row]) -> list[Row]:
    """The last row of each run."""
    return [row for row in rows if row["epoch"] == row["epochs"]]


def gone(row: Row) -> float:
    """Share of the heads whose norm is at most 1e-6 of the largest head's."""
    return sum(norm <= GONE * row["norms"][-1] for norm in row["norms"]) / len(row["norms"])


def spread(rows: list[Row], value: Callable[[Row], float], form: str) -> str:
    """Mean and range over the runs."""
    values = [value(row) for row in rows]
    mean = sum(values) / len(values)
    if len(values) == 1:
        return format(mean, form)
    return f"{mean:{form}} ({min(values):{form}} to {max(values):{form}})"


def summary(rows: list[Row]) -> str:
    """Markdown: accuracy and heads of every method at every λ after the last epoch; then the claims of Figure 1."""
    head = "| λ | method | seeds | epochs | test accuracy | loss | heads left | smallest / largest norm | CPU s a run |"
    lines = [head, "|" + "---|" * 9]
    last = ends(rows)
    kinds = sorted({(row["strength"], row["method"], row["epochs"]) for row in last})
    for strength, method, epochs in kinds:
        ours = chosen(last, strength=strength, method=method, epochs=epochs)
        cells = [
            f"{strength:g}", method, str(len(ours)), str(epochs), spread(ours, lambda row: row["accuracy"], ".1%"),
            spread(ours, lambda row: row["loss"], ".3f"),
            spread(ours, lambda row: len(row["norms"]) * (1 - gone(row)), ".1f"),
            spread(ours, lambda row: row["norms"][0] / row["norms"][-1], ".1e"),
            spread(ours, lambda row: row["cpu_seconds"], ".0f"),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(claim(last, strength) for strength in sorted({row["strength"] for row in last}))]
    return "\n".join(lines) + "\n"


def claim(last: list[Row], strength: float) -> str:
    """The three parts of the claim at one λ, on the runs of gated (D = 2) and naive."""
    gated, naive = (chosen(last, strength=strength, method=method) for method in ("gated", "naive"))
    if not gated or not naive:
        return f"- λ = {strength:g}: not run"
    kept = spread(naive, lambda row: row["norms"][0] / row["norms"][-1], ".1e")
    accuracy = [sum(row["accuracy"] for row in ours) / len(ours) for ours in (gated, naive)]
    below = f"gated below {GONE:g} of the largest head {spread(gated, gone, '.0%')} (at least 75 %)"
    above = f"naive's smallest head {kept} of its largest (above {TOLD:g})"
    return f"- λ = {strength:g}: {below}; {above}; accuracy {100 * (accuracy[0] - accuracy[1]):+.1f} points"


def draw(rows: list[Row]) -> None:
    """Accuracy by epoch for every λ; quantiles of the heads' norms at the λ with most runs, for gated and for naive."""
    strengths = sorted({row["strength"] for row in rows})
    shown = max(strengths, key=lambda strength: len(chosen(rows, strength=strength)))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "d-gating", "font.size": 9}):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        left, *right = figure.subplots(1, 3)
        for strength, style in zip(reversed(strengths), STYLES, strict=False):
            for method in ("gated", "naive"):
                _line(
                    left,
                    chosen(rows, method=method, strength=strength),
                    lambda row: row["accuracy"],
                    COLOURS[method],
                    style,
                )
        for method in ("gated", "naive"):
            left.plot([], [], color=COLOURS[method], label=method)
        for strength, style in zip(reversed(strengths), STYLES, strict=False):
            left.plot([], [], color="black", linestyle=style, label=f"λ = {strength:g}")
        left.set_ylabel("test accuracy")
        left.set_ylim(bottom=0.9)
        for place, method in zip(right, ("gated", "naive"), strict=True):
            ours = chosen(rows, method=method, strength=shown)
            for shade, (name, quantile) in enumerate(QUANTILES.items()):
                colour = matplotlib.colormaps["viridis"](shade / len(QUANTILES))
                _line(
                    place,
                    ours,
                    lambda row, at=quantile: row["norms"][round(at * (len(row["norms"]) - 1))],
                    colour,
                    "-",
                    name,
                )
            place.set_title(f"{method}, λ = {shown:g}")
            place.set_yscale("log")
            place.set_ylabel("norm of a head")
        right[1].sharey(right[0])
        for place in (left, *right):
            place.set_xlabel("epoch")
            place.legend(frameon=False, fontsize="small")
            place.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    (RESULTS / "figure.svg").write_text(file.getvalue(), encoding="utf-8")


def _line(
    place: Axes, rows: list[Row], value: Callable[[Row], float], colour: Any, style: str, name: str | None = None
) -> None:
    """The mean over seeds, and their range as a shade."""
    epochs = sorted({row["epoch"] for row in rows})
    values = [[value(row) for row in chosen(rows, epoch=epoch)] for epoch in epochs]
    means = [sum(one) / len(one) for one in values]
    place.plot(epochs, means, color=colour, linestyle=style, linewidth=1.3, label=name)
    place.fill_between(epochs, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.12, linewidth=0)


if __name__ == "__main__":
    main()
