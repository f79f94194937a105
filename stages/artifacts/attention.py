"""The table of attention matrices: a row a text, inputs, block and head, how far the pruned one is from the dense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.table import read_rows

TABLE = "errors.parquet"
SCHEMA = pa.schema(
    [
        ("text", pa.string()), ("inputs", pa.string()), ("block", pa.int32()), ("head", pa.int32()),
        ("relative_error", pa.float64()), ("energy", pa.float64()), ("least_probability", pa.float64()),
        ("smallest_eigenvalue", pa.float64()),
    ]
)  # fmt: skip
"""text: calibration or held_out; inputs: dense or own, see comparison.BlockErrors; relative_error: ‖f̃ - f‖² / ‖f‖²;
energy: ‖f‖² of the dense matrices; least_probability: the pruned ones' smallest (δ); smallest_eigenvalue: of X Xᵀ (β),
equal for the heads of a block."""

Row = dict[str, Any]


def write_errors(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), path)


def read_errors(path: Path) -> list[Row]:
    """The rows that `write_errors` wrote."""
    return read_rows(path, SCHEMA)


def curves(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """By text and inputs, the relative error of all heads of each block together."""
    sums: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        blocks = sums.setdefault((row["text"], row["inputs"]), {})
        error, energy = blocks.get(row["block"], (0.0, 0.0))
        blocks[row["block"]] = error + row["relative_error"] * row["energy"], energy + row["energy"]
    return {
        curve: {block: error / energy for block, (error, energy) in blocks.items()} for curve, blocks in sums.items()
    }
