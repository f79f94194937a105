"""Compensation of structured pruning: least squares on the inputs that stay (Shen et al. 2025, Theorem 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.linalg.damping import DampedFactor, factor_with_damping
from stages.linalg.unit_diagonal import DEAD

LEAST_RETRY = 1e-6
"""Damping of a second attempt at least."""


class Compensated(NamedTuple):
    """A refitted linear. weight: (d_out, d_in) W, zero on removed inputs; loss: predicted tr[(W - T) G (W - T)ᵀ].

    damping: what was added to the diagonal, as a fraction of it; attempts: factorisations it took.
    """

    weight: Tensor
    loss: float
    damping: float
    attempts: int


def compensated(target: Tensor, gram: Tensor, keep: Tensor, damping: float) -> Compensated:
    """Refit of a linear on the inputs `keep`: the weight whose outputs are nearest to those of `target`.

    target: (d_out, d_in) T; gram: (d_in, d_in) G; keep: (d_in,) bool, at least one. With k kept and p removed,

        W_k = T_k + T_p X,   X = G_pk (G_kk + damping · diag G_kk)⁻¹,

    which is Theorem 3 with the other side of its identity, (G⁻¹)_kp ((G⁻¹)_pp)⁻¹ = -G_kk⁻¹ G_kp: one factor of what
    stays costs k³/3 operations, the inverse of the whole and a factor of its removed part d³ + p³/3, always more. The
    system is solved for min(p, d_out) right-hand sides: for G_kp, or for G_kp T_pᵀ. All in float64, because G_kk is
    as ill-conditioned as activations are. The loss without damping is that of Remark 4,
    tr T_p (G_pp - G_pk G_kk⁻¹ G_kp) T_pᵀ.

    Departs from the paper: each input is damped by its own energy, not by the mean of all, which a single input with
    massive activations would raise above the energy of the others.

    Raises NotPositiveDefiniteError where three dampings, each ten times the last, do not do.
    """
    full, weights = gram.double(), target.double()
    kept, gone = keep.nonzero().squeeze(1), (~keep).nonzero().squeeze(1)
    if len(gone) == 0:
        return Compensated(target.clone(), 0.0, damping, 1)
    energy = full.diagonal().clamp(min=float(full.diagonal().mean()) * DEAD)
    factor, used, attempts = _factor(full[kept[:, None], kept], energy[kept], damping)
    across, lost = full[kept[:, None], gone], weights[:, gone]
    if len(gone) < len(lost):
        change = lost @ torch.cholesky_solve(across, factor).T
    else:
        change = torch.cholesky_solve(across @ lost.T, factor).T
    weight = torch.zeros_like(weights)
    weight[:, kept] = weights[:, kept] + change
    # With C the change of what is kept and D the damping, C (G_kk + D) = T_p G_pk turns the loss
    # C G_kk Cᵀ - 2 C G_kp T_pᵀ + T_p G_pp T_pᵀ into T_p G_pp T_pᵀ - C G_kp T_pᵀ - C D Cᵀ: no product with G_kk.
    away = ((lost @ full[gone[:, None], gone]) * lost).sum() - ((change @ across) * lost).sum()
    away -= used * (change.square() * energy[kept]).sum()
    return Compensated(weight.to(target.dtype), float(away), used, attempts)


def _factor(gram: Tensor, energy: Tensor, damping: float) -> DampedFactor:
    """Lower Cholesky factor of G + damping · diag(energy); energy: (d,)."""

    def factorise(tried: float) -> Tensor | None:
        damped = gram.clone()
        damped.diagonal().add_(energy, alpha=tried)
        factor, info = torch.linalg.cholesky_ex(damped)
        return factor if int(info) == 0 and bool(torch.isfinite(factor.diagonal()).all()) else None

    return factor_with_damping(
        factorise,
        damping,
        lambda last: (
            f"{len(gram)} x {len(gram)} Gram matrix of the inputs that stay is not positive definite after damping "
            f"{last:g}: use more calibration tokens than {len(gram)} or raise solve.units.damping"
        ),
        LEAST_RETRY,
    )
