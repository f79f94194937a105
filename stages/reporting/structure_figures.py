"""Plots of structured pruning: units kept in each block, and size, memory and speed against the dense model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.reporting.figures import COLOURS, DENSE, WIDTH
from stages.reporting.speed import PHASES
from stages.reporting.structure import KINDS, unit_rows
from stages.reporting.svg import INK, draw_svg

DRAWN = {
    "parameters": "parameters",
    "prefill_macs": "MACs, prefill",
    "decode_macs": "MACs, decode",
    "images_macs": "MACs, images",
    "peak_memory_mb": "peak memory",
}


def structure_figures(structure: Mapping[str, Any] | None, speed: Mapping[str, Any]) -> dict[str, str]:
    """Plots (SVG) by name: `units` of a structured checkpoint, `speed` where it was measured."""
    rows = list(unit_rows(structure))
    units = {"units": unit_bars(rows)} if rows else {}
    return units | ({"speed": speed_bars(speed["ratio"])} if speed["state"] == "measured" else {})


def unit_bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bar charts over blocks of the heads and of the channels kept, in front of the dense counts."""
    parts = {kind: [row for row in rows if row["curve"] == kind] for kind in KINDS}

    def draw(figure: Any) -> None:
        for axes, (kind, part) in zip(figure.subplots(len(KINDS), 1, sharex=True), parts.items(), strict=True):
            blocks = [row["block"] for row in part]
            axes.bar(blocks, [row["dense"] for row in part], color=DENSE, alpha=0.25, width=0.8)
            axes.bar(blocks, [row["kept"] for row in part], color=COLOURS[0], width=0.8)
            axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)
            axes.grid(visible=False, axis="x")
            axes.set_ylabel(kind)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("block")

    totals = (f"{sum(row['kept'] for row in part)} of {sum(row['dense'] for row in part)} {kind}"
              for kind, part in parts.items())  # fmt: skip
    return draw_svg("units", f"Kept in each of {len(parts['heads'])} blocks: {', '.join(totals)}", (WIDTH, 3.4), draw)


def speed_bars(ratio: Mapping[str, Any]) -> str:
    """Bar charts of the ratios in metrics/speed.json: left sizes and MACs, right speed-ups and MACs' bounds."""
    sizes = {name: ratio[key] for key, name in DRAWN.items() if key in ratio}
    phases = [phase for phase in PHASES if phase in ratio]
    speeds = [ratio[phase]["median"] for phase in phases]
    reach = [[abs(ratio[phase]["median"] - ratio[phase][end]) for phase in phases] for end in ("lowest", "highest")]
    promised = [1 / ratio[f"{phase}_macs"] for phase in phases]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        bars = left.barh(list(sizes), list(sizes.values()), color=COLOURS[2], height=0.6)
        left.bar_label(bars, fmt="%.2f", padding=4, color=INK)
        left.set_xlabel("pruned over dense")
        right.barh(phases, speeds, color=COLOURS[0], height=0.6, xerr=reach, error_kw={"ecolor": INK, "capsize": 3})
        right.plot(promised, phases, linestyle="", marker="D", color=COLOURS[1], label="dense MACs over pruned")
        right.set_xlabel("times as fast as dense")
        figure.legend(loc="outside upper right")
        for axes in (left, right):
            axes.axvline(1, color=DENSE, linewidth=1.2, linestyle=(0, (3, 2)))
            axes.margins(x=0.18)
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")

    named = [f"{name} {value:.2f}" for name, value in sizes.items()]
    named += [f"{phase} {value:.2f} times as fast" for phase, value in zip(phases, speeds, strict=True)]
    return draw_svg("speed", f"Pruned model over dense: {', '.join(named)}", (WIDTH, 1.4 + 0.3 * len(sizes)), draw)
