"""Slices: where the groups of a family lie in one parameter, by equal slices of a dimension or by a label a place.

Both kinds map between a value a group and the parameter: `spread` from groups to places, `norms` from places to
groups. Neither loops over groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Size, Tensor

from stages.errors import GatingError


@dataclass(frozen=True)
class EvenSlices:
    """Equal consecutive slices along one dimension, one for each of `count` groups.

    parameter: dotted name, as in `named_parameters()`.
    dim:       the dimension that is cut: 0 are the rows of a linear, 1 its columns.
    repeats:   how often the groups follow each other along it: 3 where q, k and v are stacked in one weight.
               Index (r · count + h) · size + i belongs to group h, for r < repeats and i < size.
    """

    parameter: str
    dim: int = 0
    repeats: int = 1

    def check(self, shape: Size, count: int) -> None:
        """Raise GatingError where a parameter of this shape cannot be cut into `count` groups."""
        if not -len(shape) <= self.dim < len(shape):
            raise GatingError(
                f"{self.parameter}: expected dim from 0 to {len(shape) - 1} for its shape {tuple(shape)}, got "
                f"{self.dim}"
            )
        if self.repeats < 1 or shape[self.dim] == 0 or shape[self.dim] % (count * self.repeats):
            raise GatingError(
                f"{self.parameter}: dimension {self.dim} of length {shape[self.dim]} cannot be cut into "
                f"{self.repeats} x {count} equal slices: change count or repeats, or give LabelledSlices"
            )

    def spread(self, values: Tensor, shape: Size) -> Tensor:
        """Values (count,) of the groups at their places: a tensor that broadcasts to `shape`."""
        length = shape[self.dim]
        size = length // (len(values) * self.repeats)
        along = values[None, :, None].expand(self.repeats, -1, size).reshape(length)
        return along.view([length if at == self.dim % len(shape) else 1 for at in range(len(shape))])

    def norms(self, tensor: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Norms ‖t_h‖ of the groups, (count,), accumulated in `dtype`; differentiable, with gradient 0 at 0."""
        dim = self.dim % tensor.dim()
        cut = tensor.unflatten(dim, (self.repeats, count, -1))
        others = [at for at in range(cut.dim()) if at != dim + 1]
        return torch.linalg.vector_norm(cut, dim=others, dtype=dtype)

    def norm(self, tensor: Tensor, count: int) -> Tensor:
        """Norm of all groups' places together, a scalar."""
        return torch.linalg.vector_norm(tensor)

    def covered(self, shape: Size) -> Tensor:
        """Mask, which broadcasts to `shape`, of places that belong to a group."""
        return torch.ones([1] * len(shape), dtype=torch.bool)

    def occupied(self, count: int) -> Tensor:
        """Mask (count,) of groups that have a place here."""
        return torch.ones(count, dtype=torch.bool)

    def on(self, device: torch.device) -> EvenSlices:
        """The same slices, on a device."""
        return self


@dataclass(frozen=True, eq=False)
class LabelledSlices:
    """Any slices: the number of its group for every place, or -1 for places that are left alone.

    parameter: dotted name, as in `named_parameters()`.
    labels:    integers from -1 to count - 1, broadcast to the parameter's shape: (d_out, 1) labels rows,
               (d_in,) columns, (d_out, d_in) any tiles, () makes the whole parameter one group's.
    """

    parameter: str
    labels: Tensor

    def check(self, shape: Size, count: int) -> None:
        """Raise GatingError for labels that do not fit the parameter or name groups beyond `count`."""
        if self.labels.is_floating_point() or self.labels.is_complex() or self.labels.dtype == torch.bool:
            raise GatingError(
                f"{self.parameter}: expected integer labels, got {self.labels.dtype}: convert them with .long()"
            )
        try:
            fits = torch.broadcast_shapes(self.labels.shape, shape) == shape
        except RuntimeError:
            fits = False
        if not fits or self.labels.numel() == 0:
            raise GatingError(
                f"{self.parameter}: expected labels that broadcast to its shape {tuple(shape)}, got "
                f"{tuple(self.labels.shape)}: (d_out, 1) labels rows, (d_in,) columns, () all of it"
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < -1 or high >= count:
            raise GatingError(
                f"{self.parameter}: expected labels from -1 (left alone) to {count - 1} for {count} groups, got {low} "
                f"to {high}: correct the labels or count"
            )

    def spread(self, values: Tensor, shape: Size) -> Tensor:
        """Values (count,) of the groups at their places: a tensor that broadcasts to `shape`, 1 where no group is."""
        return torch.cat((values, values.new_ones(1)))[self.labels.to(values.device).long()]

    def norms(self, tensor: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
        """Norms ‖t_h‖ of the groups, (count,), accumulated in `dtype`; differentiable, with gradient 0 at 0."""
        squares = tensor.to(dtype or tensor.dtype).square()
        # Places that share a label along a broadcast dimension are added up first: index_add then sees one a label.
        sums = squares.sum_to_size(self._padded(tensor.dim()))
        labels = self.labels.to(tensor.device).long().flatten() + 1
        total = squares.new_zeros(count + 1).index_add(0, labels, sums.flatten())[1:]
        return torch.where(total == 0, 1.0, total).sqrt() * (total != 0)

    def norm(self, tensor: Tensor, count: int) -> Tensor:
        """Norm of all groups' places together, a scalar."""
        return torch.linalg.vector_norm(self.norms(tensor, count))

    def covered(self, shape: Size) -> Tensor:
        """Mask, which broadcasts to `shape`, of places that belong to a group."""
        return self.labels >= 0

    def occupied(self, count: int) -> Tensor:
        """Mask (count,) of groups that have a place here."""
        return torch.bincount(self.labels.flatten().long().cpu() + 1, minlength=count + 1)[1:] > 0

    def on(self, device: torch.device) -> LabelledSlices:
        """The same slices, their labels on a device."""
        return replace(self, labels=self.labels.to(device).long())

    def _padded(self, dims: int) -> list[int]:
        """The labels' shape, with leading ones up to `dims` dimensions."""
        return [1] * (dims - self.labels.dim()) + list(self.labels.shape)


Slices = EvenSlices | LabelledSlices
