"""The report as one HTML page (page.html, page.css) with all plots inside; it loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from stages.artifacts.task_rows import metrics_in
from stages.reporting.attention_figures import attention_figures
from stages.reporting.figures import figures
from stages.reporting.flatten import flatten, relevant_settings
from stages.reporting.images import embedded
from stages.reporting.results import Results
from stages.reporting.speed import speed_rows
from stages.reporting.structure_figures import structure_figures

HERE = Path(__file__).parent
MOST_ROWS = 10


def page(results: Results, summary: Mapping[str, Any]) -> str:
    """The HTML text. summary: what `summarise` gives of the results."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": number,
        "percent": percent,
        "share": share,
        "pattern": pattern,
        "signed": signed,
        "metrics": metrics_in,
    }
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    worst = sorted(results.rows, key=lambda row: -row["relative_error"])[:MOST_ROWS]
    settings = relevant_settings(summary["solve"], summary["patterns"])
    text = {key: value for key, value in results.protocol["text"].items() if key not in ("sha256", "files")}
    drawn = figures(results) | attention_figures(results.attention_rows)
    drawn |= structure_figures(summary["structure"], results.speed)
    return template.render(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        figures={name: Markup(svg) for name, svg in drawn.items()},
        summary=summary,
        worst=worst,
        running=list(speed_rows(results.speed)),
        smallest=min(row["sparsity"] for row in results.rows),
        largest=max(row["sparsity"] for row in results.rows),
        text=list(flatten(text)),
        calibration=list(flatten(summary["calibration"])),
        chosen=list(flatten({**settings, "settings": summary["settings"]})),
        versions=list(flatten({**results.protocol.get("versions", {}), **results.manifest.get("versions", {})})),
        hashes=results.hashes,
        pictures={model: embedded(png) for model, png in results.pictures.items()},
    )


def number(value: float | None, digits: int = 2) -> str:
    """12,345 or 12.34 or 1.2e-05: as many digits as say something."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.{digits}e}"
    return f"{value:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, which of 0 is +."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def percent(fraction: float, digits: int = 2) -> str:
    """0.5 as 50.00 %."""
    return f"{100 * fraction:.{digits}f} %"


def pattern(name: str) -> str:
    """A pattern as it stands in a sentence."""
    return {"units": "whole heads and channels", "width": "hidden width"}.get(name, name)


def share(ratio: float) -> str:
    """A ratio as a change: 1.5 as +50.0 %."""
    return f"{100 * (ratio - 1):+.1f} %"
