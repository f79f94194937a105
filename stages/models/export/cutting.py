"""Which entries of a block's tensors stay when units go: a rule of shapes, for any way a linear is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from stages.models.streaming.units import Units
from stages.models.structure import Linear


class AxisCut(NamedTuple):
    """What stays of a stored tensor: the entries `keep` (size,) bool of one axis."""

    axis: int
    keep: Tensor

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of what stays of a tensor of `shape`."""
        kept = int(self.keep.sum())
        return tuple(kept if axis == self.axis else size for axis, size in enumerate(shape))

    def of(self, tensor: Tensor) -> Tensor:
        """What stays of a tensor."""
        return tensor.index_select(self.axis, self.keep.nonzero().flatten())


def cuts_of(units: Units, keep: Tensor) -> dict[str, AxisCut]:
    """For every parameter that `units` are a part of, what stays with those of `keep` (units,) bool.

    Weights of the sources lose rows, their biases entries, the sink's weight columns; its bias stays whole. A bias
    is named whether the linear has one or not.
    """
    found = {units.sink.tensor: AxisCut(_axis(units.sink, 1), units.kept_columns(keep))}
    for linear, rows in units.kept_rows(keep).items():
        found[linear.tensor] = AxisCut(_axis(linear, 0), rows)
        found[f"{linear.name}.bias"] = AxisCut(0, rows)
    return found


def _axis(linear: Linear, axis: int) -> int:
    """Where rows (0) or columns (1) of a weight (d_out, d_in) lie in the tensor that is stored."""
    return 1 - axis if linear.transposed else axis
