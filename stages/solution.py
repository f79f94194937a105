"""The solution of a block on disk: packed masks, refitted weights, a row a linear."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.linears import Row
from stages.linalg.masks import pack, unpack
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.tensorfile import TensorFile, read_tensors, write_tensors


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
    file = TensorFile(path)
    packed = {linear: f"{linear.name}.keep" for linear in linears}
    tensors = file.read(packed.values())
    return {linear.name: unpack(tensors[name], linear.shape) for linear, name in packed.items()}


def read_pruned(path: Path, linears: Sequence[Linear], model: StreamedModel) -> Iterator[tuple[Linear, Tensor, Tensor]]:
    """Each linear with its mask (d_out, d_in) and its pruned weight, oriented and typed as the checkpoint stores it."""
    tensors = read_tensors(path)
    for linear in linears:
        keep = unpack(tensors[f"{linear.name}.keep"], linear.shape)
        dense = model.stored_weight(linear)
        kept = tensors.get(f"{linear.name}.kept", dense[keep])
        weight = torch.zeros_like(dense, memory_format=torch.contiguous_format)
        weight[keep] = kept.to(weight.dtype)
        yield linear, keep, linear.weight(weight).contiguous()


def read_weights(path: Path, linears: Sequence[Linear], model: StreamedModel) -> dict[str, Tensor]:
    """The pruned weight of each linear, under its parameter's name and as the checkpoint stores it."""
    return {linear.tensor: weight for linear, _, weight in read_pruned(path, linears, model)}
