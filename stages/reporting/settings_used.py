"""How a model was pruned, in a few lines: method, settings other than the defaults, pattern, layout, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.reporting.flatten import flatten, relevant_settings

SHOWN_APART = ("method", "sparsity", "pattern")


def settings_used(summary: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a name and its text; defaults: of `solve` for this method, and of every method's settings."""
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
    changed = ", ".join(f"{key} {value}" for key, value in flatten(settings) if dict(flatten(usual)).get(key) != value)
    return f"{name} ({changed})" if changed else name


def _changed(solve: Mapping[str, Any], usual: Mapping[str, Any], patterns: list[str]) -> Iterator[str]:
    """Settings of solve that are not the defaults and mean something to its method."""
    if not solve:
        return
    before = dict(flatten(usual))
    settings = relevant_settings(solve, patterns)
    for name, value in flatten({key: value for key, value in settings.items() if key not in SHOWN_APART}):
        if before.get(name) != value:
            yield f"{name} {value}"
