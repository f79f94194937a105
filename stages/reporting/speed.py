"""What the pruned model costs to run against the dense one, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MEGA, MIB = 1e6, 2**20
SIZES = (
    ("parameters", "parameters, millions", MEGA),
    ("block_parameters", "of them in blocks, millions", MEGA),
    ("weight_bytes", "weights, MB", MIB),
    ("prefill_macs", "MACs a token in prefill, millions", MEGA),
    ("decode_macs", "MACs a token in decode, millions", MEGA),
    ("peak_memory_mb", "peak memory, MB", 1),
)
"""Names in metrics/speed.json, what they are called, their unit."""
PHASES = ("prefill", "decode")


def speed_rows(speed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row a figure: its name, the values of both models and pruned over dense, the last with its spread if timed."""
    if speed["state"] != "measured":
        return
    dense, pruned, ratio = speed["dense"], speed["pruned"], speed["ratio"]
    for key, name, unit in SIZES:
        if key in ratio:
            told = {"dense": dense[key] / unit, "pruned": pruned[key] / unit, "ratio": ratio[key]}
            yield {"key": key, "figure": name, **told, "lowest": None, "highest": None}
    for phase in PHASES:
        told = {"dense": dense[phase]["median"], "pruned": pruned[phase]["median"], "ratio": ratio[phase]["median"]}
        spread = {end: ratio[phase][end] for end in ("lowest", "highest")}
        yield {"key": phase, "figure": f"{phase}, tokens a second", **told, **spread}
