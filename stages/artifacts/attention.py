"""errors.parquet, the table of attention matrices: how far the pruned model's are from the dense model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from stages.artifacts.table import Table

ATTENTION_ERRORS = Table(
    "errors.parquet",
    pa.schema(
        [
            ("text", pa.string()), ("inputs", pa.string()), ("block", pa.int32()), ("head", pa.int32()),
            ("relative_error", pa.float64()), ("energy", pa.float64()), ("least_probability", pa.float64()),
            ("smallest_eigenvalue", pa.float64()),
        ]
    ),
)  # fmt: skip
"""A row a text, inputs, block and head. text: calibration or held_out; inputs: dense or own, the hidden states that the
pruned block is run on (measuring.attention.errors); relative_error: ‖f̃ - f‖² / ‖f‖² of the matrices; energy: ‖f‖² of
the dense ones; least_probability: the pruned ones' smallest (δ); smallest_eigenvalue: of X Xᵀ (β), equal for the heads
of a block."""


def errors_by_block(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """By (text, inputs) and block, the relative error of all heads of the block together."""
    sums: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        blocks = sums.setdefault((row["text"], row["inputs"]), {})
        error, energy = blocks.get(row["block"], (0.0, 0.0))
        blocks[row["block"]] = error + row["relative_error"] * row["energy"], energy + row["energy"]
    return {
        curve: {block: error / energy for block, (error, energy) in blocks.items()} for curve, blocks in sums.items()
    }
