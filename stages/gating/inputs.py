"""Units gated where one linear reads them, by scales of their own: the model's other parts are left alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stages.errors import GatingError
from stages.gating.gates import Gates
from stages.gating.slices import EvenSlices

COLUMNS = EvenSlices("weight", dim=1)


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
    """Units of one linear with their gates; what is penalised is the size of a unit relative to where it began.

    gates:  γ (factors, units), ones at first.
    cost:   c of each unit: the penalty is λ c Σ_u |s_u|^(2/D) where factors are balanced.
    weight: (d_out, d_in) of the linear, where it is trained too: its columns v_u are then one of the D factors, by
            ‖v_u‖/‖v_u,0‖; else all D are scalars. start: ‖v_u,0‖ (units,), float64.
    """

    gates: Gates
    cost: float
    weight: Tensor | None = None
    start: Tensor | None = None

    @property
    def depth(self) -> int:
        """D, the number of factors."""
        return len(self.gates.factors) + (self.weight is not None)

    def penalty(self) -> Tensor:
        """c/D (Σ_d ‖γ_d‖² + Σ_u ‖v_u‖²/‖v_u,0‖²), a scalar to add to the loss λ times: eq. 4 with relative norms.

        At the start it is c times the number of units, whatever the weights are.
        """
        total = self.gates.factors.square().sum()
        if self.weight is not None and self.start is not None:
            squares = COLUMNS.norms(self.weight, len(self.start)).square()
            there = (self.start > 0).to(squares)
            total = total + (squares * there / self.start.to(squares).square().clamp_min(1e-30)).sum()
        return total * (self.cost / self.depth)

    @torch.no_grad()
    def sizes(self) -> Tensor:
        """|s_u|, (units,), float64: 1 at the start, of units without weights too; 0 for a unit that is gone.

        Raises GatingError where one is not finite.
        """
        found = self.gates.factors.double().prod(0).abs()
        if self.weight is not None and self.start is not None:
            norms = COLUMNS.norms(self.weight, len(self.start), torch.float64)
            found = found * torch.where(self.start > 0, norms / self.start, 1.0)
        if not bool(torch.isfinite(found).all()):
            raise GatingError("a gate is not finite: training has diverged: lower the learning rates")
        return found

    @torch.no_grad()
    def scales(self) -> Tensor:
        """s_u = ∏_d γ_{u,d}, (units,), float64: what the columns of the weight are to be multiplied by."""
        return self.gates.factors.double().prod(0)


def scaled_units(gates: Gates, cost: float, weight: Tensor | None = None) -> ScaledUnits:
    """Units as they begin; weight: (d_out, d_in), where it is trained."""
    if weight is None:
        return ScaledUnits(gates, cost)
    count = gates.factors.shape[1]
    return ScaledUnits(gates, cost, weight, COLUMNS.norms(weight.detach(), count, torch.float64))
