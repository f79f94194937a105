"""The last result as a short table for a terminal (`python -m stages.report --show`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.artifacts.task_rows import metrics_in
from stages.reporting.settings_used import settings_used
from stages.reporting.speed import MEGA, speed_rows


def short_table(summary: Mapping[str, Any], defaults: Mapping[str, Any], page: Path) -> str:
    """Dense and pruned side by side, how it was pruned, the seconds of each stage, where the page is.

    defaults: see `settings_used`.
    """
    dense, pruned = summary["dense"], summary["pruned"]
    table = [
        [summary["model"], "dense", "pruned"],
        [
            "perplexity of codes" if summary["images"] else "perplexity",
            _fixed(dense["perplexity"]["value"]),
            _fixed(pruned["perplexity"]["value"]),
        ],
        ["sparsity", "-", f"{100 * pruned['sparsity']:.2f} %"],
        *_covered(pruned),
        ["mean relative error", "-", f"{pruned['relative_error']:.4f}"],
    ]
    for task, row in dense["tasks"].items():
        for metric in metrics_in(row):
            values = [model["tasks"].get(task, {}).get(metric) for model in (dense, pruned)]
            table.append([f"{task}, {metric}", *("-" if value is None else f"{value:.3f}" for value in values)])
    for row in (summary["images"] or {"rows": []})["rows"]:
        table.append([row["figure"], *(f"{row[model]:.{row['digits']}f}" for model in ("dense", "pruned"))])
    table += _running(summary)
    costs = [["stage", "seconds", "peak MB"]]
    costs += [
        [cost["stage"], f"{cost.get('seconds', 0):.1f}", f"{cost.get('peak_memory_mb', 0):.0f}"]
        for cost in summary["costs"]
    ]
    notes = [f"note: {note}" for note in summary["notes"]]
    pairs = settings_used(summary, defaults)
    width = max(len(name) for name, _ in pairs)
    used = [f"{name.ljust(width)}  {value}" for name, value in pairs]
    return "\n".join([*_aligned(table), *notes, "", *used, "", *_aligned(costs), "", f"report: {page}"])


def _covered(pruned: Mapping[str, Any]) -> list[list[str]]:
    """The share that linears cover and their own sparsity, where there are other weights than theirs."""
    if pruned["covered"] == 1:
        return []
    return [
        ["block weights in linears", "-", f"{100 * pruned['covered']:.2f} %"],
        ["sparsity of linears", "-", f"{100 * pruned['linears_sparsity']:.2f} %"],
    ]


def _running(summary: Mapping[str, Any]) -> list[list[str]]:
    """What the pruned model costs to run, where that was measured; else the parameters of a structured one."""
    rows = list(speed_rows(summary["speed"]))
    if rows:
        return [[row["figure"], f"{row['dense']:,.1f}", f"{row['pruned']:,.1f}"] for row in rows]
    if summary["structure"]:
        counts = summary["structure"]["parameters"]
        return [["parameters, millions", f"{counts['dense'] / MEGA:,.1f}", f"{counts['pruned'] / MEGA:,.1f}"]]
    return []


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _fixed(value: float) -> str:
    return f"{value:,.2f}"
