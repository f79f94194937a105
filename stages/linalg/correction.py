"""Targets corrected toward the outputs of the dense model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError
from stages.linalg.unit import unit_diagonal


class Shortfall(NamedTuple):
    """What linears that share an input x lack to make the pruned model's states those of the dense one.

    With δ what their outputs lack on a token (x₀ is the dense model's input for it),

        δ = W₀ (x₀ - x),   and for a linear whose output is added to the hidden states h,   δ = W₀ (x₀ - x) + h₀ - h,

    gram: (d_in, d_in) mean of x xᵀ; lack: (d_in, d_out) mean of x δᵀ.
    """

    gram: Tensor
    lack: Tensor


def corrected_target(
    dense: Tensor, fit: Shortfall, held: Shortfall, rows: tuple[int, ...], strength: float, ridge: float
) -> tuple[Tensor, tuple[float, ...]]:
    """Target T (d_out, d_in) that makes up for what `dense` lacks, and the strength each linear got.

    The full correction is least squares on the tokens of `fit`,

        T = W₀ + α D,   D = lackᵀ (G + ridge diag G)⁻¹,   G = mean x xᵀ, lack = mean x δᵀ.

    Its error on other tokens is quadratic in α: mean |T x - W₀ x - δ|² changes by α² tr D G Dᵀ - 2 α tr D lack.
    A linear (`rows` of each) gets `strength`, or the α with the least error on the tokens of `held` if that is
    smaller, down to 0: so on those tokens no linear is worse off than with its dense weight as the target.

    Raises NotPositiveDefiniteError where G has no factor.
    """
    if not bool(fit.gram.diagonal().any()):
        return dense, (0.0,) * len(rows)
    unit = unit_diagonal(fit.gram)
    unit.gram.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(unit.gram)
    if int(info) != 0:
        raise NotPositiveDefiniteError(
            f"{len(dense.T)} x {len(dense.T)} Gram matrix is not positive definite with correction_ridge {ridge:g}: "
            "raise solve.correction_ridge or set solve.target to dense"
        )
    full = torch.cholesky_solve(fit.lack / unit.scale[:, None], factor).T / unit.scale
    aligned = (held.lack.T * full).sum(1).double().split(rows)
    energy = ((full @ held.gram) * full).sum(1).double().split(rows)
    strengths = tuple(_safe(float(a.sum()), float(e.sum()), strength) for a, e in zip(aligned, energy, strict=True))
    moved = [alpha * part for alpha, part in zip(strengths, full.split(rows), strict=True)]
    return dense + torch.cat(moved), strengths


def _safe(aligned: float, energy: float, strength: float) -> float:
    """The strength asked for, or the one at which the held-out error is least if that is smaller."""
    if aligned <= 0 or energy <= 0:
        return 0.0
    return min(strength, aligned / energy)
