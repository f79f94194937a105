"""The table of timings: a row a round, model (dense or pruned) and phase (prefill or decode)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.table import read_rows

TABLE = "rounds.parquet"
SCHEMA = pa.schema(
    [
        ("round", pa.int32()), ("model", pa.string()), ("phase", pa.string()), ("tokens", pa.int64()),
        ("seconds", pa.float64()),
    ]
)  # fmt: skip


def write_rounds(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write all rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), path)


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The rows that `write_rounds` wrote."""
    return read_rows(path, SCHEMA)
