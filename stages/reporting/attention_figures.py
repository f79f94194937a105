"""Plots of the errors of attention matrices: lines by block, a heat map by block and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.artifacts.attention import errors_by_block
from stages.reporting.figures import COLOURS, WIDTH, log_scale
from stages.reporting.svg import draw_svg

Rows = Sequence[Mapping[str, Any]]
TEXTS = {"calibration": "calibration", "held_out": "held-out"}
SHOWN = "held_out", "own"
"""Text and inputs that the heat map shows."""


def attention_figures(rows: Rows) -> dict[str, str]:
    """Plots (SVG) by name, from rows of errors.parquet; none where nothing was measured."""
    return {"attention": error_lines(rows), "heads": error_cells(rows)} if rows else {}


def curve_name(text: str, inputs: str) -> str:
    """Legend of a curve: `held-out, own inputs`."""
    return f"{TEXTS[text]}, {inputs} inputs"


def error_lines(rows: Rows) -> str:
    """Line plot of relative error over blocks, a line a text and inputs: held-out solid, calibration dashed."""
    lines = dict(
        sorted(errors_by_block(rows).items(), key=lambda line: (line[0][1] != "own", line[0][0] != "held_out"))
    )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for (text, inputs), values in lines.items():
            held_out = text == "held_out"
            axes.plot(
                list(values),
                list(values.values()),
                label=curve_name(text, inputs),
                color=COLOURS[1 if inputs == "own" else 0],
                linestyle="-" if held_out else (0, (3, 2)),
                linewidth=1.6 if held_out else 1.1,
                marker="o" if held_out else None,
                markersize=3,
            )
        log_scale(axes, min(min(values.values()) for values in lines.values()))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("block")
        axes.set_ylabel("relative error")
        figure.legend(loc="outside right upper")

    names = ", ".join(curve_name(*line) for line in lines)
    return draw_svg("attention", f"Relative error of the attention matrices by block: {names}", (WIDTH, 4.0), draw)


def error_cells(rows: Rows) -> str:
    """Heat map over heads and blocks: the held-out error on the pruned model's own inputs, on a log scale."""
    part = [row for row in rows if (row["text"], row["inputs"]) == SHOWN]
    heads, blocks = (1 + max(row[column] for row in part) for column in ("head", "block"))
    grid = [[float("nan")] * blocks for _ in range(heads)]
    for row in part:
        grid[row["head"]][row["block"]] = row["relative_error"] or float("nan")
    errors = [row["relative_error"] for row in part if row["relative_error"] > 0]

    def draw(figure: Any) -> None:
        from matplotlib import colormaps
        from matplotlib.colors import LogNorm

        axes = figure.subplots()
        # Few levels: a colour bar of more would be drawn as an embedded bitmap.
        colours = colormaps["viridis"].resampled(20)
        edges = [[position - 0.5 for position in range(count + 1)] for count in (blocks, heads)]
        norm = LogNorm(min(errors), max(errors)) if len(set(errors)) > 1 else None
        mesh = axes.pcolormesh(*edges, grid, norm=norm, cmap=colours, edgecolors="none")
        for axis, count, most in ((axes.xaxis, blocks, 15), (axes.yaxis, heads, 16)):
            axis.set_ticks(range(0, count, max(1, -(-count // most))))
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel("block")
        axes.set_ylabel("head")
        bar = figure.colorbar(mesh, ax=axes, label="relative error", fraction=0.04, pad=0.02)
        bar.outline.set_visible(False)
        if norm is not None:
            log_scale(bar.ax, min(errors), subs=(1,))
            bar.ax.minorticks_off()

    name = f"Relative error of the attention matrices of {heads} heads in each of {blocks} blocks, {curve_name(*SHOWN)}"
    return draw_svg("heads", name, (WIDTH, min(1.2 + 0.22 * heads, 6.0)), draw)
