"""The gating operation v ▷ γ (eq. 3) as a torch parametrization: v and γ are trained, the module computes with w."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor, nn

from stages.gating.slices import Slices


class Gates(nn.Module):
    """Trainable gates γ (D - 1, count) of a family of groups, ones at first.

    One vector (count,) a factor, however many parameters a group lies in. depth: D. like: gives device and dtype, which
    is float32 at least.
    """

    def __init__(self, depth: int, count: int, like: Tensor) -> None:
        super().__init__()
        # In half precision, steps of a few thousandths of a gate near 1 would be lost in rounding.
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.factors = nn.Parameter(torch.ones(depth - 1, count, dtype=dtype, device=like.device))

    def product(self) -> Tensor:
        """∏_d γ_{h,d} of each group h, (count,)."""
        return reduce(torch.mul, self.factors.unbind(0))


class Gated(nn.Module):
    """Parametrization of one parameter: w = v ▷ γ, every slice multiplied by the product of its group's gates.

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
        """w, in the shape and dtype of v."""
        (gates,) = self._gates
        return v * self.slices.spread(gates.product().to(v), v.shape)
