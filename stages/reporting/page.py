"""The page: one HTML file with everything inside, nothing to load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from stages.artifacts.task_rows import metrics_in
from stages.reporting.attention import attention_figures
from stages.reporting.figures import figures
from stages.reporting.flat import flat, known
from stages.reporting.gather import Findings
from stages.reporting.smaller import smaller_figures
from stages.reporting.speed import speed_rows

HERE = Path(__file__).parent
MOST_ROWS = 10


def page(findings: Findings, summary: Mapping[str, Any]) -> str:
    """The whole HTML text."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": number,
        "percent": percent,
        "share": share,
        "pattern": pattern,
        "metrics": metrics_in,
    }
    template = environment.from_string((HERE / "page.html").read_text(encoding="utf-8"))
    worst = sorted(findings.rows, key=lambda row: -row["relative_error"])[:MOST_ROWS]
    text = {key: value for key, value in findings.protocol["text"].items() if key not in ("sha256", "files")}
    drawn = figures(findings) | attention_figures(findings.attention_rows)
    drawn |= smaller_figures(summary["structure"], findings.speed)
    return template.render(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        figures={name: Markup(svg) for name, svg in drawn.items()},
        summary=summary,
        worst=worst,
        running=list(speed_rows(findings.speed)),
        smallest=min(row["sparsity"] for row in findings.rows),
        largest=max(row["sparsity"] for row in findings.rows),
        text=list(flat(text)),
        calibration=list(flat(summary["calibration"])),
        chosen=list(flat({**known(summary["solve"], summary["patterns"]), "settings": summary["settings"]})),
        versions=list(flat({**findings.protocol.get("versions", {}), **findings.manifest.get("versions", {})})),
        hashes=findings.hashes,
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


def percent(fraction: float, digits: int = 2) -> str:
    """0.5 as 50.00 %."""
    return f"{100 * fraction:.{digits}f} %"


def pattern(name: str) -> str:
    """What a pattern is called in a sentence."""
    return {"units": "whole heads and channels", "width": "hidden width"}.get(name, name)


def share(ratio: float) -> str:
    """1.5 as +50.0 %."""
    return f"{100 * (ratio - 1):+.1f} %"
