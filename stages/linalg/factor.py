"""The factor of a damped inverse: one Cholesky, failures handled in the open."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError

ATTEMPTS = 3
"""Dampings tried: the one asked for, then ten times as much each time."""


class InverseFactor(NamedTuple):
    """upper: (d, d) upper triangular U with UᵀU = (G / mean(diag G) + damping I)⁻¹."""

    upper: Tensor
    damping: float
    attempts: int


def inverse_factor(gram: Tensor, damping: float, tokens: int | None = None) -> InverseFactor:
    """Upper Cholesky factor of the inverse of a damped Gram matrix, (d, d).

    Scaled to mean(diag) = 1 first, so that the units of the activations do not matter. With P the
    reversal of the axes, P G P = L Lᵀ gives G⁻¹ = UᵀU for U = (P L P)⁻¹: one factorisation and one
    triangular inverse, where the public SparseGPT code factors, inverts and factors again.

    damping: added to diag(G), as a fraction of its mean. Raised tenfold, at most twice, where the
    factorisation fails; the value used comes back.
    Raises NotPositiveDefiniteError when no attempt succeeds.
    """
    scale = gram.diagonal().mean()
    if not torch.isfinite(scale) or scale <= 0:
        raise NotPositiveDefiniteError(
            f"{_shape(gram)} Gram matrix has mean diagonal {float(scale):g}: expected more than 0; "
            "its inputs are all zero (or not finite) on this calibration text: use other text or a rule that "
            "leaves this linear dense (sparsity: 0)"
        )
    tried = damping
    for attempt in range(1, ATTEMPTS + 1):
        root = _reversed_cholesky(gram, scale, tried)
        if root is not None:
            identity = torch.eye(root.shape[0], dtype=root.dtype, device=root.device)
            return InverseFactor(torch.linalg.solve_triangular(root, identity, upper=True), tried, attempt)
        last, tried = tried, tried * 10
    seen = "" if tokens is None else f" (got {tokens} tokens)"
    raise NotPositiveDefiniteError(
        f"{_shape(gram)} Gram matrix is not positive definite after damping {last:g}: use more calibration tokens "
        f"than {gram.shape[0]}{seen} or raise the method's damping"
    )


def _reversed_cholesky(gram: Tensor, scale: Tensor, damping: float) -> Tensor | None:
    """P L P of the damped, scaled matrix, or None where it has no factor; holds two more matrices at a time."""
    damped = gram.flip(0, 1).div_(scale)
    damped.diagonal().add_(damping)
    lower, info = torch.linalg.cholesky_ex(damped)
    del damped
    if int(info) == 0 and bool(torch.isfinite(lower.diagonal()).all()):
        return lower.flip(0, 1)
    return None


def _shape(gram: Tensor) -> str:
    return f"{gram.shape[0]} x {gram.shape[1]}"
