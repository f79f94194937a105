"""Baselines of D-gating: the group lasso by its penalty under SGD, and by the exact proximal step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from stages.gating.groups import Groups, parameters_of
from stages.gating.slices import Slices


class GroupLasso:
    """Group lasso λ Σ_h ‖w_h‖ (eq. 1 with D = 2) of plain parameters.

    Raises GatingError for groups that the model does not have.
    """

    def __init__(self, model: nn.Module, families: Sequence[Groups]) -> None:
        self._families = list(zip(families, parameters_of(model, families), strict=True))

    def penalty(self, strength: float) -> Tensor:
        """Penalty λ Σ_h ‖w_h‖, a scalar to add to the loss: the naive way.

        Its gradient λ w/‖w‖ (0 at 0) is as long beside 0 as anywhere: steps jump over it and never stop there.
        """
        return strength * torch.stack([groups.norms(tensors).sum() for groups, tensors in self._families]).sum()

    def norms(self) -> list[Tensor]:
        """Norms ‖w_h‖ of each family's groups, (count,), float64."""
        with torch.no_grad():
            return [groups.norms(tensors, torch.float64) for groups, tensors in self._families]

    @torch.no_grad()
    def shrink(self, threshold: float) -> None:
        """Proximal step w_h ← w_h max(0, 1 - t/‖w_h‖), to take after each step on the loss alone.

        threshold: t = λ times the step's learning rate. Groups of norm up to t become exact zeros, never -0.0.
        """
        for (groups, tensors), norms in zip(self._families, self.norms(), strict=True):
            share = torch.where(norms > threshold, 1 - threshold / norms, 0.0)
            for part, tensor in zip(groups.slices, tensors, strict=True):
                _multiply(tensor, part, share)


def _multiply(tensor: Tensor, slices: Slices, share: Tensor) -> None:
    """Multiply groups by `share` (count,) in place; adding 0 turns -0.0 into 0.0."""
    tensor.mul_(slices.spread(share.to(tensor), tensor.shape)).add_(0.0)
