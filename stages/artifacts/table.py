"""Parquet tables of figures: one writer and one reader, which checks the columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.places import how_to_repair
from stages.errors import ArtifactError

Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A kind of Parquet table: the file's name in its stage's folder, and its columns."""

    name: str
    schema: pa.Schema

    def write(self, folder: Path, rows: Sequence[Row]) -> None:
        """Write all rows, a dictionary by column each, under the table's name; what a row lacks is null."""
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self.schema), folder / self.name)

    def read(self, path: Path) -> list[Row]:
        """The rows that `write` wrote; raises ArtifactError unless the file has all columns."""
        table = pq.read_table(path)
        missing = [name for name in self.schema.names if name not in table.column_names]
        if missing:
            raise ArtifactError(
                f"{path}: expected a column {missing[0]}, got {', '.join(table.column_names)} (another version wrote "
                f"it): {how_to_repair(path)}"
            )
        rows: list[Row] = table.to_pylist()
        return rows
