"""Corrected targets of linears: ridge regression of the output error against the dense model on pruned inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError
from stages.linalg.unit_diagonal import UnitGram, unit_diagonal


class OutputErrorMoments(NamedTuple):
    """Second moments of an input x and the output error δ, against the dense model, of the linears that share it.

    With x₀ the dense model's input on the same token,

        δ = W₀ (x₀ - x),   and for a linear whose output is added to the hidden states h,   δ = W₀ (x₀ - x) + h₀ - h,

    gram: (d_in, d_in) mean of x xᵀ; cross: (d_in, d_out) mean of x δᵀ.
    """

    gram: Tensor
    cross: Tensor

    def only(self, chosen: Sequence[bool], rows: Sequence[int]) -> OutputErrorMoments:
        """Moments of the chosen linears alone; chosen, rows: for each linear whether, and its d_out."""
        parts = self.cross.split(list(rows), dim=1)
        return OutputErrorMoments(
            self.gram, torch.cat([part for part, wanted in zip(parts, chosen, strict=True) if wanted], 1)
        )


class Correction(NamedTuple):
    """Strength α and ridge of a linear's correction, both chosen on held-out tokens; 0 and 0 for no correction."""

    strength: float = 0.0
    ridge: float = 0.0


def corrected_target(
    dense: Tensor,
    fit: OutputErrorMoments,
    held: OutputErrorMoments,
    rows: tuple[int, ...],
    share: float,
    ridges: Sequence[float],
) -> tuple[Tensor, tuple[Correction, ...]]:
    """Target T (d_out, d_in) whose outputs on pruned inputs make up for the output error, and each linear's correction.

    The full correction is least squares on the tokens of `fit`,

        T = W₀ + α D,   D = Cᵀ (G + ridge diag G)⁻¹,   G = mean x xᵀ, C = mean x δᵀ.

    Its error on other tokens is quadratic in α: mean |T x - W₀ x - δ|² changes by α² tr D G Dᵀ - 2 α tr D C.
    So on the tokens of `held` the best α is known for every ridge; each linear (`rows` of each) takes the best
    ridge and `share` of its α, and none (T = W₀) where every correction points the wrong way. On those tokens
    no linear is worse off than with its dense weight as the target.

    Raises NotPositiveDefiniteError where G has no factor.
    """
    best = [Correction() for _ in rows]
    if not bool(fit.gram.diagonal().any()):
        return dense, tuple(best)
    unit, gains, targets = unit_diagonal(fit.gram), [0.0] * len(rows), list(dense.split(rows))
    for ridge in ridges:
        full = _full_correction(unit, fit.cross, ridge)
        aligned = (held.cross.T * full).sum(1).double().split(rows)
        energy = ((full @ held.gram) * full).sum(1).double().split(rows)
        for i, (part, start) in enumerate(zip(full.split(rows), dense.split(rows), strict=True)):
            # 2 α along - α² against is largest at α = along / against, where it is along² / against.
            along, against = float(aligned[i].sum()), float(energy[i].sum())
            if along > 0 and against > 0 and along**2 / against > gains[i]:
                gains[i], best[i] = along**2 / against, Correction(share * along / against, ridge)
                targets[i] = start + best[i].strength * part
    return torch.cat(targets), tuple(best)


def _full_correction(unit: UnitGram, cross: Tensor, ridge: float) -> Tensor:
    """D (d_out, d_in), solved in unit-diagonal coordinates, where the ridge is a fraction of every input's energy."""
    damped = unit.gram.clone()
    damped.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0:
        raise NotPositiveDefiniteError(
            f"{len(damped)} x {len(damped)} Gram matrix is not positive definite with a ridge of {ridge:g}: "
            "raise solve.correction_ridges or set solve.target to dense"
        )
    return torch.cholesky_solve(cross / unit.scale[:, None], factor).T / unit.scale
