"""Pruned weights, kept units and changed biases of a model, read from the solution's files and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.packing import unpack
from stages.artifacts.solution import read_biases, read_masks, read_units
from stages.artifacts.table import Row
from stages.artifacts.tensorfile import read_tensors
from stages.errors import ArtifactError
from stages.linalg.masks import groups_of, satisfies_groups
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
from stages.models.structure import Linear


class Pruned:
    """Reads a model's pruned weights from its solution, a block at a time, and checks them.

    solutions: each block's file; rows: of the table of linears, by a linear's name.
    """

    def __init__(self, model: StreamedModel, solutions: list[Path], rows: Mapping[str, Row]) -> None:
        self.model, self.solutions, self.rows = model, solutions, rows
        self._at: tuple[int, dict[str, Tensor]] = (-1, {})

    def block(self, index: int) -> Mapping[str, Tensor]:
        """Pruned weights and changed biases of a block by parameter name, as they are stored.

        Raises ArtifactError unless every mask has its row's count, its N:M pattern, and true zeros beneath.
        """
        if self._at[0] != index:
            weights = dict[str, Tensor]()
            for linear, keep, weight in read_pruned(self.solutions[index], self.model.linears(index), self.model):
                _check_pruned(linear, keep, linear.weight(weight), self.rows[linear.name])
                weights[linear.tensor] = weight
            self._at = (index, weights | self.biases(index))
        return self._at[1]

    def biases(self, index: int) -> dict[str, Tensor]:
        """Biases (d_out,) of a block that are not the dense model's, by parameter name, in the checkpoint's dtype."""
        biases = read_biases(self.solutions[index], [linear.name for linear in self.model.linears(index)])
        return {name: bias.to(self.model.weights.dtype) for name, bias in biases.items()}

    def masks(self, index: int) -> dict[Linear, Tensor]:
        """Keep masks (d_out, d_in) bool of a block's linears."""
        linears = self.model.linears(index)
        masks = read_masks(self.solutions[index], {linear.name: linear.shape for linear in linears})
        return {linear: masks[linear.name] for linear in linears}

    def stored(self) -> dict[str, tuple[int, str]]:
        """For each stored tensor that `block` replaces or adds, its block and its parameter name."""
        stored, names = dict[str, tuple[int, str]](), self.model.weights.names
        for index in range(self.model.blocks):
            for linear in self.model.linears(index):
                stored[names[linear.tensor]] = index, linear.tensor
            for bias in self.biases(index):
                beside = names[f"{bias.removesuffix('bias')}weight"]
                stored[names.get(bias, f"{beside.removesuffix('weight')}bias")] = index, bias
        return stored

    def units(self, index: int) -> dict[str, Tensor] | None:
        """Keep masks (units,) bool of a block's heads and channels, by kind; None where no method chose units.

        Raises ArtifactError if a mask keeps a weight of a removed unit.
        """
        kept = read_units(self.solutions[index])
        if not kept:
            return None
        masks = {linear.name: mask for linear, mask in self.masks(index).items()}
        for units in units_of(self.model, index):
            keep = kept.setdefault(units.kind, torch.ones(units.count, dtype=torch.bool))
            removed = [masks[units.sink.name][:, ~units.kept_columns(keep)]]
            removed += [masks[linear.name][~rows] for linear, rows in units.kept_rows(keep).items()]
            if any(bool(mask.any()) for mask in removed):
                raise ArtifactError(
                    f"block {index}: a mask keeps weights of removed {units.kind}: run the solve stage again"
                )
        return kept


def read_pruned(path: Path, linears: Sequence[Linear], model: StreamedModel) -> Iterator[tuple[Linear, Tensor, Tensor]]:
    """Each linear with its keep mask (d_out, d_in) bool and its pruned weight as the checkpoint stores it.

    The weight has the checkpoint's orientation and dtype.
    """
    tensors = read_tensors(path)
    for linear in linears:
        keep = unpack(tensors[f"{linear.name}.keep"], linear.shape)
        dense = model.weights.stored(linear)
        kept = tensors.get(f"{linear.name}.kept", dense[keep])
        weight = torch.zeros_like(dense, memory_format=torch.contiguous_format)
        weight[keep] = kept.to(weight.dtype)
        yield linear, keep, linear.weight(weight).contiguous()


def read_weights(path: Path, linears: Sequence[Linear], model: StreamedModel) -> dict[str, Tensor]:
    """Pruned weights and changed biases of linears by parameter name, as the checkpoint stores them."""
    weights = {linear.tensor: weight for linear, _, weight in read_pruned(path, linears, model)}
    return weights | read_biases(path, [linear.name for linear in linears])


def _check_pruned(linear: Linear, keep: Tensor, weight: Tensor, row: Row) -> None:
    """Raise ArtifactError unless mask and weight (d_out, d_in) fit each other and the row of the table of linears."""
    if int(keep.sum()) != row["kept"]:
        raise ArtifactError(f"{linear.name}: expected {row['kept']} kept weights, got {int(keep.sum())}")
    removed = weight[~keep]
    if bool((removed != 0).any()) or bool(removed.signbit().any()):
        raise ArtifactError(f"{linear.name}: a removed weight is not exactly 0: run the solve stage again")
    groups = groups_of(row["pattern"])
    if groups is not None and not satisfies_groups(keep, *groups):
        raise ArtifactError(f"{linear.name}: a group keeps more than {row['pattern']} allows")
