"""What structured pruning left of each block, and how such a checkpoint is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

KINDS = ("heads", "channels")
PLAIN = 'AutoModelForCausalLM.from_pretrained("data/pruned")'
LAYOUTS = {
    "hetero": (
        "every block has widths of its own, and the checkpoint carries the few lines of modelling code for that",
        'AutoModelForCausalLM.from_pretrained("data/pruned", trust_remote_code=True)',
    ),
    "sliced": (
        "all heads and channels, on hidden states rotated and narrowed, with matrices on residual connections: the "
        "checkpoint carries its modelling code",
        'AutoModelForCausalLM.from_pretrained("data/pruned", trust_remote_code=True)',
    ),
    "uniform": ("every block has the same widths, which transformers' own class reads", PLAIN),
    "padded": ("narrower blocks are filled up with zeros to the widest: transformers' own class reads it", PLAIN),
}
"""By layout: what it is, and how it is loaded."""


def told_of(structure: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The structure in a pruning manifest with what its layout is and how it is loaded; None if there is none."""
    if structure is None:
        return None
    what, load = LAYOUTS.get(structure["layout"], ("a layout this report does not know", PLAIN))
    return {**structure, "what": what, "load": load, "removed": 1 - _ratio(structure["parameters"])}


def unit_rows(structure: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """A row a block and kind of unit: how many are kept, of how many, and their fraction."""
    for index, block in enumerate((structure or {}).get("blocks", ())):
        for kind in KINDS:
            kept, dense = block[kind], block[f"{kind}_dense"]
            yield {"block": index, "curve": kind, "kept": kept, "dense": dense, "kept_fraction": kept / dense}


def _ratio(counts: Mapping[str, Any]) -> float:
    return float(counts["pruned"] / counts["dense"])
