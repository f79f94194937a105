"""Parquet tables of figures, whose columns are checked when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.places import how_to_repair
from stages.errors import ArtifactError


def read_rows(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """The rows of a table; raises ArtifactError unless it has the columns of `schema`."""
    table = pq.read_table(path)
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise ArtifactError(
            f"{path}: expected a column {missing[0]}, got {', '.join(table.column_names)} (another version wrote it): "
            f"{how_to_repair(path)}"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
