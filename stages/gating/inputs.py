"""Gates on the inputs of one linear, a scale a unit (head or channel), without touching any parameter of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stages.errors import GatingError
from stages.gating.gates import Gates


def scaled_inputs(linear: nn.Module, gates: Gates) -> RemovableHandle:
    """Hook `linear` to read x ∘ s, s = ∏_d γ_d of the unit that an input belongs to; unit u has the u-th equal run.

    W (x ∘ s) = (W ∘ s) x, so this is the gating of the unit's columns of W (gate.py) at one product an input instead
    of one a weight, and its gradient in s needs no gradient in W.
    """

    def scale(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *rest = args
        scales = gates.product().to(x)
        return ((x.unflatten(-1, (len(scales), -1)) * scales[:, None]).flatten(-2), *rest)

    return linear.register_forward_pre_hook(scale)


@dataclass(frozen=True, eq=False)
class ScaledUnits:
    """The gated units of one linear; a unit's size |s_u| is 1 at the start.

    gates: γ (factors, units), ones at first: all D factors are scalars, whether the weights are trained or not.
    cost:  c, of each unit: the penalty is λ c Σ_u |s_u|^(2/D) where factors are balanced.
    """

    gates: Gates
    cost: float

    def penalty(self) -> Tensor:
        """Gating penalty c/D Σ_d ‖γ_d‖² (eq. 4), a scalar to add to the loss λ times; at the start c a unit."""
        return self.gates.factors.square().sum() * (self.cost / len(self.gates.factors))

    @torch.no_grad()
    def scales(self) -> Tensor:
        """s_u = ∏_d γ_{u,d}, (units,), float64, which multiply the units' columns of the weight."""
        return self.gates.factors.double().prod(0)

    def sizes(self) -> Tensor:
        """|s_u|, (units,), float64: 1 at the start, 0 for a unit that is gone.

        Raises GatingError where one is not finite.
        """
        sizes = self.scales().abs()
        if not bool(torch.isfinite(sizes).all()):
            raise GatingError("a gate is not finite: training has diverged: lower the learning rates")
        return sizes
