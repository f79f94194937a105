"""The table of linears: one row each, how it was pruned and how well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.table import read_rows

TABLE = "linears.parquet"
SCHEMA = pa.schema(
    [
        ("linear", pa.string()), ("block", pa.int32()), ("role", pa.string()), ("method", pa.string()),
        ("pattern", pa.string()), ("scope", pa.string()), ("weights", pa.int64()), ("kept", pa.int64()),
        ("sparsity", pa.float64()), ("relative_error", pa.float64()), ("damping", pa.float64()),
        ("attempts", pa.int32()), ("refits", pa.bool_()), ("refit", pa.string()), ("correction", pa.float64()),
        ("correction_ridge", pa.float64()),
    ]
)  # fmt: skip
"""A row a linear. sparsity: fraction removed; damping: null where nothing was inverted; refits: whether kept
weights changed; refit: none, cg or exact, after the method; correction, correction_ridge: the strength and the ridge
of the target's correction, null where the target was the dense weight."""

Row = dict[str, Any]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), path)


def read_table(path: Path) -> list[Row]:
    """The rows that `write_table` wrote."""
    return read_rows(path, SCHEMA)
