"""How a model was pruned, in a few lines: method, settings that are not the defaults, pattern, layout, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.reporting.flat import flat, known

TOLD_APART = ("method", "sparsity", "pattern")


def recipe(summary: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a name and what it was; defaults: of `solve` for this method, and of every method's settings."""
    solve, calibration = summary["solve"], summary["calibration"]
    methods = [
        _method(name, summary["settings"].get(name, {}), defaults["methods"][name]) for name in summary["methods"]
    ]
    pairs = [
        ("method", "; ".join(methods)),
        ("settings", ", ".join(_changed(solve, defaults["solve"], summary["patterns"])) or "the defaults"),
        ("pattern", ", ".join(summary["patterns"])),
        ("layout", summary["structure"]["name"] if summary["structure"] else "dense"),
    ]
    if "sequences" in calibration:
        text = calibration.get("text", {}).get("name", "a text")
        pairs.append(("calibration", f"{text}, {calibration['sequences']} x {calibration.get('length', '?')} tokens"))
    return pairs


def _method(name: str, settings: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """A method with its settings that are not the defaults."""
    told = ", ".join(f"{key} {value}" for key, value in flat(settings) if dict(flat(usual)).get(key) != value)
    return f"{name} ({told})" if told else name


def _changed(solve: Mapping[str, Any], usual: Mapping[str, Any], patterns: list[str]) -> Iterator[str]:
    """Settings of solve that are not the defaults and mean something to its method."""
    if not solve:
        return
    before = dict(flat(usual))
    for name, value in flat({key: value for key, value in known(solve, patterns).items() if key not in TOLD_APART}):
        if before.get(name) != value:
            yield f"{name} {value}"
