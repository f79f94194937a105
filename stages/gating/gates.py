"""The gating operation (eq. 3) as a parametrization of torch: v and gates are trained, the module sees v ▷ γ."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from stages.gating.slices import Slices


class Gates(nn.Module):
    """Factors γ (D - 1, count) of a family's groups, ones at first; one vector a factor, however many parameters."""

    def __init__(self, depth: int, count: int, like: Tensor) -> None:
        super().__init__()
        # Steps of a few thousandths of a gate near 1 are lost in half precision.
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.factors = nn.Parameter(torch.ones(depth - 1, count, dtype=dtype, device=like.device))

    def product(self) -> Tensor:
        """∏_d γ_{h,d}, (count,)."""
        return reduce(torch.mul, self.factors.unbind(0))


class Gated(nn.Module):
    """w = v ▷ γ for the slices of one parameter.

    owner: whether the gates are kept in the model's state here; a family has one owner, so that a gate is one
           parameter under one name.
    """

    def __init__(self, gates: Gates, slices: Slices, owner: bool) -> None:
        super().__init__()
        self.slices = slices
        self._gates = (gates,)  # in a tuple: nn.Module does not register what is in one
        if owner:
            self.gates = gates

    def forward(self, v: Tensor) -> Tensor:
        """Shape and dtype of v."""
        (gates,) = self._gates
        return v * self.slices.spread(gates.product().to(v), v.shape)
