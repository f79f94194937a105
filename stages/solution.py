"""The solution of a block on disk: packed masks, refitted weights, a row a linear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from stages.linalg.masks import pack, unpack
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.tensorfile import TensorFile, read_tensors, write_tensors

TABLE = "linears.parquet"
SCHEMA = pa.schema(
    [
        ("linear", pa.string()), ("block", pa.int32()), ("role", pa.string()), ("method", pa.string()),
        ("pattern", pa.string()), ("scope", pa.string()), ("weights", pa.int64()), ("kept", pa.int64()),
        ("sparsity", pa.float64()), ("relative_error", pa.float64()), ("damping", pa.float64()),
        ("attempts", pa.int32()), ("refits", pa.bool_()),
    ]
)  # fmt: skip
"""A row a linear. sparsity: fraction removed; damping: null where nothing was inverted."""

Row = dict[str, Any]


def write_block(path: Path, solved: Sequence[tuple[Row, Tensor, Tensor | None]]) -> None:
    """Write rows with their masks (d_out, d_in) and, where the method refits, the kept weights (kept,)."""
    tensors: dict[str, Tensor] = {}
    for row, keep, kept in solved:
        tensors[f"{row['linear']}.keep"] = pack(keep)
        if kept is not None:
            tensors[f"{row['linear']}.kept"] = kept.cpu()
    write_tensors(path, tensors, {"rows": json.dumps([row for row, _, _ in solved], sort_keys=True)})


def read_rows(path: Path) -> list[Row]:
    """The rows of a block's solution."""
    rows: list[Row] = json.loads(TensorFile(path).metadata["rows"])
    return rows


def read_masks(path: Path, linears: Sequence[Linear]) -> dict[str, Tensor]:
    """The mask (d_out, d_in) of each linear, by its name."""
    tensors = read_tensors(path)
    return {linear.name: unpack(tensors[f"{linear.name}.keep"], linear.shape) for linear in linears}


def read_weights(path: Path, linears: Sequence[Linear], model: StreamedModel) -> dict[str, Tensor]:
    """The pruned weight of each linear, under its parameter's name and as the checkpoint stores it."""
    tensors, pruned = read_tensors(path), dict[str, Tensor]()
    for linear in linears:
        keep = unpack(tensors[f"{linear.name}.keep"], linear.shape)
        dense = model.stored_weight(linear)
        kept = tensors.get(f"{linear.name}.kept", dense[keep])
        weight = torch.zeros_like(dense, memory_format=torch.contiguous_format)
        weight[keep] = kept.to(weight.dtype)
        pruned[linear.tensor] = linear.weight(weight).contiguous()
    return pruned


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows as Parquet."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), path)


def read_table(path: Path) -> list[Row]:
    """The rows that `write_table` wrote."""
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows
