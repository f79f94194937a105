"""Physical removal of units: which entries of a block's stored tensors stay, for any way a linear is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from stages.models.streaming.units import Units
from stages.models.structure import Linear


class AxisCut(NamedTuple):
    """A cut of a stored tensor along one axis; keep: (size,) bool, the entries that stay."""

    axis: int
    keep: Tensor

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of a tensor of `shape` after the cut."""
        kept = int(self.keep.sum())
        return tuple(kept if axis == self.axis else size for axis, size in enumerate(shape))

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor after the cut, as a copy."""
        return tensor.index_select(self.axis, self.keep.nonzero().flatten())


def cuts_of(units: Units, keep: Tensor) -> dict[str, AxisCut]:
    """The cut of every parameter that `units` are a part of, by name; keep: (units,) bool, the units that stay.

    Weights of the sources lose rows, their biases entries, the sink's weight columns; its bias stays whole. A bias
    is named whether the linear has one or not.
    """
    cuts = {units.sink.tensor: AxisCut(_axis(units.sink, 1), units.kept_columns(keep))}
    for linear, rows in units.kept_rows(keep).items():
        cuts[linear.tensor] = AxisCut(_axis(linear, 0), rows)
        cuts[f"{linear.name}.bias"] = AxisCut(0, rows)
    return cuts


def _axis(linear: Linear, axis: int) -> int:
    """Axis of the stored tensor along which rows (0) or columns (1) of a weight (d_out, d_in) lie."""
    return 1 - axis if linear.transposed else axis
