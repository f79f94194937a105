"""The inverse of a symmetric positive definite matrix, mostly by products."""

from __future__ import annotations

import torch
from torch import Tensor

LEAF = 256
"""Largest matrix that is inverted by one Cholesky factor."""


def inverse_by_halves(matrix: Tensor) -> Tensor:
    """Inverse of a symmetric positive definite matrix by halves; not finite where it is not one.

    With A = M₁₁⁻¹, X = A M₁₂ and S = (M₂₂ - M₁₂ᵀ X)⁻¹ it is [[A + X S Xᵀ, -X S], [-S Xᵀ, S]]: products, which
    run at full speed, and Cholesky factors of small blocks only.
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
