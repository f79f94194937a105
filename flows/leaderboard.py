"""Leaderboard of a sweep's runs: Markdown, CSV, and an HTML page with a plot."""

from __future__ import annotations

import csv
import html
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPARSITY = "solve.sparsity"
STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}td{white-space:nowrap}svg{width:100%;height:auto}"
)


@dataclass(frozen=True)
class Entry:
    """A run of a sweep: its parameters; the experiment's name, metrics and costs, or the error it ended with."""

    values: Mapping[str, Any]
    experiment: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def perplexity(self) -> float:
        """Of the pruned model; infinite for a run that failed, so that it comes last."""
        return float(self.metrics["pruned"]["perplexity"]["value"]) if self.metrics else float("inf")

    def row(self, parameters: Sequence[str]) -> dict[str, Any]:
        """The run's row of the tables, by column."""
        row: dict[str, Any] = {name.rpartition(".")[2]: self.values[name] for name in parameters}
        if self.error:
            return row | {"perplexity": "failed", "experiment": self.error}
        pruned = self.metrics["pruned"]
        measured = (*(pruned.get("tasks") or ()), *(pruned.get("images") or ()))
        row["perplexity"] = round(self.perplexity, 3)
        row["dense"] = round(self.metrics["dense"]["perplexity"]["value"], 3)
        summary = self.metrics.get("summary", {})
        row |= {name: round(summary[name], 4) for name in measured if name in summary}
        row["solve seconds"] = self.cost["solve"]["seconds"]
        return row | {"experiment": self.experiment}


def _number(value: Any) -> float | None:
    """A swept value as a number; None for those that are none, such as null."""
    try:
        return float(value)
    except ValueError:
        return None


def write_leaderboard(folder: Path, parameters: Sequence[str], entries: Sequence[Entry]) -> None:
    """Write leaderboard.md, .csv and .html, best perplexity first; each whole or not at all."""
    ranked = sorted(entries, key=lambda entry: entry.perplexity)
    rows = [entry.row(parameters) for entry in ranked]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / "leaderboard.md", _markdown(columns, rows))
    _replace(folder / "leaderboard.csv", _csv(columns, rows))
    _replace(folder / "leaderboard.html", _page(columns, rows, _plot(parameters, entries)))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _markdown(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([str(row.get(column, "")) for column in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _page(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], plot: str) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    cells = ["".join(f"<td>{html.escape(str(row.get(column, '')))}</td>" for column in columns) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in cells)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Leaderboard</title><style>{STYLE}</style>'
        f"<h1>Leaderboard</h1>{plot}<table><tr>{head}</tr>\n{body}</table></html>\n"
    )


def _plot(parameters: Sequence[str], entries: Sequence[Entry]) -> str:
    """Perplexity (log) over sparsity, a line for each combination of the other parameters, as SVG."""
    if SPARSITY not in parameters:
        return ""
    done = [entry for entry in entries if not entry.error and _number(entry.values[SPARSITY]) is not None]
    if not done:
        return ""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    others = [name for name in parameters if name != SPARSITY]
    lines: dict[str, list[tuple[float, float]]] = {}
    for entry in done:
        label = ", ".join(str(entry.values[name]) for name in others) or "pruned"
        lines.setdefault(label, []).append((float(entry.values[SPARSITY]), entry.perplexity))
    with mpl.rc_context({"svg.hashsalt": "secateur", "font.size": 11, "svg.fonttype": "none"}):
        figure, axes = pyplot.subplots(figsize=(8, 4.5))
        for label, points in lines.items():
            axes.plot(*zip(*sorted(points), strict=True), marker="o", label=label)
        axes.axhline(done[0].metrics["dense"]["perplexity"]["value"], color="gray", linestyle=":", label="dense")
        axes.set(xlabel="sparsity", ylabel="perplexity", yscale="log")
        axes.set_xticks(sorted({float(entry.values[SPARSITY]) for entry in done}))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
