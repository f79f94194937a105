"""Size, memory and speed of the pruned model against the dense one, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MEGA, GIGA, MIB = 1e6, 1e9, 2**20
SIZES = (
    ("parameters", "parameters, millions", MEGA),
    ("block_parameters", "of them in blocks, millions", MEGA),
    ("weight_bytes", "weights, MB", MIB),
    ("prefill_macs", "MACs a token in prefill, millions", MEGA),
    ("decode_macs", "MACs a token in decode, millions", MEGA),
    ("images_macs", "MACs an image, billions", GIGA),
    ("peak_memory_mb", "peak memory, MB", 1),
)
"""Names in metrics/speed.json, their labels with units, and what they are divided by."""
PHASES = {
    "prefill": "prefill, tokens a second",
    "decode": "decode, tokens a second",
    "images": "images a second",
}
"""Phases and their labels with units; `images` of image models only."""


def speed_rows(speed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of metrics/speed.json: a figure of both models and the ratio, with its lowest and highest if timed."""
    if speed["state"] != "measured":
        return
    dense, pruned, ratio = speed["dense"], speed["pruned"], speed["ratio"]
    for key, name, unit in SIZES:
        if key in ratio:
            values = {"dense": dense[key] / unit, "pruned": pruned[key] / unit, "ratio": ratio[key]}
            yield {"key": key, "figure": name, **values, "lowest": None, "highest": None}
    for phase, name in PHASES.items():
        if phase not in ratio:
            continue
        values = {"dense": dense[phase]["median"], "pruned": pruned[phase]["median"], "ratio": ratio[phase]["median"]}
        spread = {end: ratio[phase][end] for end in ("lowest", "highest")}
        yield {"key": phase, "figure": name, **values, **spread}
