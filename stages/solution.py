"""The solution of a block on disk: packed masks, refitted weights, a row a linear; kept units and biases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from stages.artifacts.linears import Row
from stages.errors import NotFiniteError
from stages.linalg.masks import pack, unpack
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.tensorfile import TensorFile, read_tensors, write_tensors


class BlockSolution(NamedTuple):
    """A solved block: a row a linear with its mask (d_out, d_in) and its kept weights (kept,) where they changed.

    units: by kind, which heads and channels (units,) bool stay, where a structured method chose them;
    biases: (d_out,) of linears, by name, where they are not the dense model's.
    """

    linears: Sequence[tuple[Row, Tensor, Tensor | None]]
    units: Mapping[str, Tensor] | None = None
    biases: Mapping[str, Tensor] | None = None


def in_stored_dtype(values: Tensor, dtype: torch.dtype, linear: Linear, what: str) -> Tensor:
    """Solved weights or biases of a linear, rounded to the checkpoint's dtype.

    A kept weight may become 0, or be so small that it does: it stays a kept one, masks are the solver's. Raises
    NotFiniteError for what the dtype cannot hold.
    """
    stored = values.to(dtype)
    if not bool(torch.isfinite(stored).all()):
        largest, name = float(values.abs().max()), str(dtype).removeprefix("torch.")
        raise NotFiniteError(
            f"block {linear.block}: the solved {what} of {linear.name} reach {largest:g}: expected at most "
            f"{torch.finfo(dtype).max:g}, which {name} holds: set fetch.model.dtype to bfloat16 or float32, "
            "or use more calibration tokens"
        )
    return stored


def write_block(
    path: Path,
    solved: Sequence[tuple[Row, Tensor, Tensor | None]],
    units: Mapping[str, Tensor] | None = None,
    biases: Mapping[str, Tensor] | None = None,
) -> None:
    """Write what a BlockSolution holds."""
    tensors = {f"units.{kind}": pack(keep) for kind, keep in (units or {}).items()}
    tensors |= {f"{linear}.bias": bias.cpu() for linear, bias in (biases or {}).items()}
    for row, keep, kept in solved:
        tensors[f"{row['linear']}.keep"] = pack(keep)
        if kept is not None:
            tensors[f"{row['linear']}.kept"] = kept.cpu()
    facts = {"rows": [row for row, _, _ in solved], "units": {kind: len(keep) for kind, keep in (units or {}).items()}}
    write_tensors(path, tensors, {name: json.dumps(fact, sort_keys=True) for name, fact in facts.items()})


def read_rows(path: Path) -> list[Row]:
    """The rows of a block's solution."""
    rows: list[Row] = json.loads(TensorFile(path).metadata["rows"])
    return rows


def read_units(path: Path) -> dict[str, Tensor]:
    """Which units (units,) bool of each kind are kept; nothing where no structured method chose them."""
    file = TensorFile(path)
    counts: dict[str, int] = json.loads(file.metadata["units"])
    return {kind: unpack(file.read([f"units.{kind}"])[f"units.{kind}"], (count,)) for kind, count in counts.items()}


def read_biases(path: Path, linears: Sequence[Linear]) -> dict[str, Tensor]:
    """Biases (d_out,) that are not the dense model's, under their parameters' names."""
    file = TensorFile(path)
    return file.read(name for linear in linears if (name := f"{linear.name}.bias") in file.places)


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
    """The pruned weight of each linear and the changed biases, by parameter and as the checkpoint stores them."""
    weights = {linear.tensor: weight for linear, _, weight in read_pruned(path, linears, model)}
    return weights | read_biases(path, linears)
