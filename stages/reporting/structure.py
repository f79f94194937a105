"""Facts about structured pruning for the report: the layout, and the heads and channels kept in each block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KINDS = ("heads", "channels")
LAYOUTS = {
    "hetero": "every block has widths of its own, and the checkpoint carries the few lines of modelling code for that",
    "sliced": "all heads and channels, on hidden states rotated and narrowed, with matrices on residual connections: "
    "the checkpoint carries its modelling code",
    "uniform": "every block has the same widths, which a class of transformers' own reads",
    "padded": "narrower blocks are filled up with zeros to the widest: a class of transformers' own reads it",
}
"""A sentence on each layout."""


def structure_facts(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Layout, sizes and budget of a pruning manifest; None if every tensor kept its shape."""
    layout = manifest.get("layout", {})
    if "blocks" not in layout:
        return None
    counts = layout["parameters"]
    return {
        **layout,
        "what": LAYOUTS.get(layout["name"], "a layout this report does not know"),
        "removed": 1 - counts["pruned"] / counts["dense"],
        "budget": manifest.get("budget"),
    }


def unit_rows(layout: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """A row a block and kind of unit: how many are kept, of how many, and their fraction."""
    for index, block in enumerate((layout or {}).get("blocks", ())):
        for kind in KINDS:
            kept, dense = block[kind], block[f"{kind}_dense"]
            yield {"block": index, "curve": kind, "kept": kept, "dense": dense, "kept_fraction": kept / dense}
