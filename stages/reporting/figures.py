"""Plots of every report: bars of perplexity, lines of error, a heat map of sparsity, bars of cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.reporting.results import MODELS, Results
from stages.reporting.summary import exact_roles, grouped, totals
from stages.reporting.svg import INK, draw_svg

COLOURS = ("#4c8dd6", "#e08a3c", "#4fa86b", "#d05f5f", "#9a7bd0", "#a5825f", "#d878b4", "#8c8c8c", "#b0a93a")
DENSE, PRUNED = "#8c8c8c", COLOURS[0]
WIDTH = 9.0


def figures(results: Results) -> dict[str, str]:
    """Plots (SVG) by name."""
    return {
        "perplexity": perplexity_bars(results.metrics),
        "error": error_lines(results.rows),
        "sparsity": sparsity_cells(results.rows),
        **({"cost": cost_bars(results.costs)} if results.costs else {}),
    }


def perplexity_bars(metrics: Mapping[str, Any]) -> str:
    """Bar chart of perplexity, a bar a model."""
    values = [metrics[model]["perplexity"]["value"] for model in MODELS]
    named = ", ".join(f"{model} {value:.2f}" for model, value in zip(MODELS, values, strict=True))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        bars = axes.barh(MODELS, values, color=[DENSE, PRUNED], height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=4, color=INK)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("perplexity (lower is better)")

    return draw_svg("perplexity", f"Perplexity: {named}", (WIDTH, 1.7), draw)


def error_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Line plot over blocks, a line a role: the mean relative error of the linears with that role, where they err."""
    exact = exact_roles(rows)
    rows = [row for row in rows if row["role"] not in exact] or rows

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        lowest = 0.0
        for index, (role, part) in enumerate(grouped(rows, "role").items()):
            values = {block: totals(some)["relative_error"] for block, some in grouped(part, "block").items()}
            values = {block: value or float("nan") for block, value in values.items()}
            lowest = min((value for value in (lowest, *values.values()) if value > 0), default=0.0)
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(list(values), list(values.values()), label=role, color=colour, marker="o", markersize=3)
        log_scale(axes, lowest)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("block")
        axes.set_ylabel("relative error")
        figure.legend(loc="outside right upper")

    roles = ", ".join(grouped(rows, "role"))
    return draw_svg("error", f"Relative error by block, a line for each role: {roles}", (WIDTH, 4.0), draw)


def log_scale(axes: Any, lowest: float, subs: tuple[int, ...] = (1, 2, 5)) -> None:
    """Set a log scale on the y axis, labelled with plain numbers at `subs` of each decade; linear if `lowest` is 0."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if lowest > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def sparsity_cells(rows: Sequence[Mapping[str, Any]]) -> str:
    """Heat map of sparsity (0 to 1) over roles and blocks."""
    roles, blocks = list(grouped(rows, "role")), sorted(grouped(rows, "block"))
    cells: dict[tuple[str, int], list[Any]] = {(role, block): [] for role in roles for block in blocks}
    for row in rows:
        cells[row["role"], row["block"]].append(row)
    grid = [[totals(cells[r, b])["sparsity"] if cells[r, b] else float("nan") for b in blocks] for r in roles]

    def draw(figure: Any) -> None:
        from matplotlib import colormaps

        axes = figure.subplots()
        # Few levels: a colour bar of more would be drawn as an embedded bitmap.
        colours = colormaps["viridis"].resampled(20)
        edges = [[position - 0.5 for position in range(count + 1)] for count in (len(blocks), len(roles))]
        mesh = axes.pcolormesh(*edges, grid, vmin=0, vmax=1, cmap=colours, edgecolors="none")
        axes.set_yticks(range(len(roles)), roles)
        step = max(1, len(blocks) // 15)
        axes.set_xticks(range(0, len(blocks), step), blocks[::step])
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.set_xlabel("block")
        figure.colorbar(mesh, ax=axes, label="fraction removed", fraction=0.04, pad=0.02).outline.set_visible(False)

    name = f"Fraction of weights removed in each of {len(rows)} linears, by block and role"
    return draw_svg("sparsity", name, (WIDTH, 1.2 + 0.32 * len(roles)), draw)


def cost_bars(costs: Mapping[str, Mapping[str, float]]) -> str:
    """Bar charts of seconds and of peak memory, a bar a stage."""
    names = [stage.replace("_", " ") for stage in costs]
    panels = (("seconds", "seconds", "%.1f"), ("peak_memory_mb", "peak memory, MB", "%.0f"))

    def draw(figure: Any) -> None:
        for axes, (key, label, form) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            bars = axes.barh(names, [cost.get(key, 0) for cost in costs.values()], color=COLOURS[2], height=0.6)
            axes.bar_label(bars, fmt=form, padding=4, color=INK)
            axes.margins(x=0.18)
            axes.locator_params(axis="x", nbins=5)
            axes.grid(visible=False, axis="y")
            axes.set_xlabel(label)
        figure.axes[0].invert_yaxis()

    named = ", ".join(f"{stage} {cost.get('seconds', 0):.1f} s" for stage, cost in costs.items())
    return draw_svg("cost", f"Seconds and peak memory of each stage: {named}", (WIDTH, 0.9 + 0.3 * len(names)), draw)
