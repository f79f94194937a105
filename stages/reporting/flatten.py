"""Flattens nested settings to pairs of a dotted name and a text, and leaves out those without a meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LAYER_WISE = ("pattern", "scope", "refit", "allocation")
"""Prefixes of settings of solve that only methods of single weights know."""


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Pairs (dotted name, text) of nested settings or facts; hashes are shortened, empty values left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{name}[{index}]")
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        yield name, f"{value[:12]}…"
    elif value not in (None, ""):
        yield name, repr(value) if isinstance(value, str) and value.isspace() else str(value)


def relevant_settings(solve: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """The settings of solve that its method knows; patterns: those of the solution (units, width, 2:4, ...)."""
    single = not {"units", "width"} & set(patterns)
    unknown = (() if single else LAYER_WISE) + (() if "units" in patterns else ("units",))
    return {name: value for name, value in solve.items() if not name.startswith(unknown)}
