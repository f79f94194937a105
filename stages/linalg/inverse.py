"""Inverse of a symmetric positive definite matrix by recursive block inversion, mostly matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = 256
"""Largest matrix that is inverted by one Cholesky factor."""


def inverse_by_halves(matrix: Tensor) -> Tensor:
    """Inverse (d, d) of a symmetric positive definite matrix M (d, d); not finite where M is not one.

    By halves (Schur complement): with A = M₁₁⁻¹, X = A M₁₂ and S = (M₂₂ - M₁₂ᵀ X)⁻¹ the inverse is
    [[A + X S Xᵀ, -X S], [-S Xᵀ, S]]: products, which run at full speed, and Cholesky factors of small blocks only.
    """
    width = matrix.shape[0]
    if width <= LEAF:
        lower, info = torch.linalg.cholesky_ex(matrix)
        return torch.full_like(matrix, torch.nan) if int(info) else torch.cholesky_inverse(lower)
    half = width // 2
    first, across = inverse_by_halves(matrix[:half, :half]), matrix[:half, half:]
    along = first @ across
    second = inverse_by_halves(torch.addmm(matrix[half:, half:], across.T, along, alpha=-1))
    coupled = along @ second
    upper = torch.cat((torch.addmm(first, coupled, along.T), -coupled), 1)
    return torch.cat((upper, torch.cat((-coupled.T, second), 1)))
