"""Nested settings and facts as pairs of a dotted name and a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LAYER_WISE = ("pattern", "scope", "refit", "allocation")
"""What settings of solve begin with that only methods of single weights know."""


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as (dotted name, text): hashes shortened, for the page lists them whole; empty ones left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for index, inner in enumerate(value):
            yield from flat(inner, f"{name}[{index}]")
    elif isinstance(value, list | tuple):
        if value:
            yield name, ", ".join(map(str, value))
    elif isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value):
        yield name, f"{value[:12]}…"
    elif value not in (None, ""):
        yield name, repr(value) if isinstance(value, str) and value.isspace() else str(value)


def known(solve: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """The settings of solve but for those that mean nothing to its method."""
    single = not {"units", "width"} & set(patterns)
    unknown = (() if single else LAYER_WISE) + (() if "units" in patterns else ("units",))
    return {name: value for name, value in solve.items() if not name.startswith(unknown)}
