"""Units gated where one linear reads them, by scales of their own: the model's other parts are left alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stages.errors import GatingError
from stages.gating.gates import Gates


def scaled_inputs(linear: nn.Module, gates: Gates) -> RemovableHandle:
    """From now on `linear` reads x ∘ s, s = ∏_d γ_d of the unit an input belongs to; unit u has the u-th equal run.

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
    """Units of one linear with their gates; a unit's size |s_u| is relative to where it began.

    gates: γ (factors, units), ones at first: all D factors are scalars, whether the weights are trained or not.
    cost:  c of each unit: the penalty is λ c Σ_u |s_u|^(2/D) where factors are balanced.
    """

    gates: Gates
    cost: float

    def penalty(self) -> Tensor:
        """c/D Σ_d ‖γ_d‖², a scalar to add to the loss λ times: eq. 4. At the start it is c times the units."""
        return self.gates.factors.square().sum() * (self.cost / len(self.gates.factors))

    @torch.no_grad()
    def scales(self) -> Tensor:
        """s_u = ∏_d γ_{u,d}, (units,), float64: what the columns of the weight are to be multiplied by."""
        return self.gates.factors.double().prod(0)

    def sizes(self) -> Tensor:
        """|s_u|, (units,), float64: 1 at the start, 0 for a unit that is gone.

        Raises GatingError where one is not finite.
        """
        found = self.scales().abs()
        if not bool(torch.isfinite(found).all()):
            raise GatingError("a gate is not finite: training has diverged: lower the learning rates")
        return found
