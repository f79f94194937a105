"""Extreme eigenvalues: the largest of a Gram matrix by Lanczos, the smallest of X Xᵀ."""

from __future__ import annotations

import torch
from torch import Tensor

LANCZOS_STEPS = 64
"""Lanczos steps (products with the matrix) at most. After 64 from a random start the result is too low by more than
5 % with probability below 10⁻⁹ (Kuczyński, Woźniakowski 1992, theorem 4.1), mostly it is exact."""


def largest_eigenvalue(gram: Tensor) -> float:
    """Largest eigenvalue ‖G‖₂ of a symmetric positive semi-definite matrix (d, d); a lower bound but for rounding.

    Lanczos from a fixed random start, every vector made orthogonal to all before it, twice.
    """
    width = gram.shape[0]
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(width, generator=generator, dtype=torch.float64).to(gram)
    basis = gram.new_zeros(min(LANCZOS_STEPS, width), width)
    diagonal, beside = [], []
    for step in range(len(basis)):
        basis[step] = vector / vector.norm()
        image = gram @ basis[step]
        diagonal.append(float(image @ basis[step]))
        seen = basis[: step + 1]
        # Twice, since one pass leaves what cancellation made of the components along earlier vectors.
        for _ in range(2):
            image = image - seen.T @ (seen @ image)
        vector = image
        beside.append(float(vector.norm()))
        if beside[-1] <= 10 * torch.finfo(gram.dtype).eps * max(map(abs, diagonal)):
            break
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if len(diagonal) > 1:
        small += torch.diag(torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64), 1)
    return float(torch.linalg.eigvalsh(small, UPLO="U")[-1])


def smallest_eigenvalue(inputs: Tensor) -> float:
    """The smallest eigenvalue of X Xᵀ for X (n, d); 0 where n > d, and where it is lost in rounding (equal rows)."""
    n, d = inputs.shape
    if n > d:
        return 0.0
    inputs = inputs.double()
    eigenvalues = torch.linalg.eigvalsh(inputs @ inputs.T)
    rounding = n * torch.finfo(torch.float64).eps * float(eigenvalues[-1])
    return float(eigenvalues[0]) if float(eigenvalues[0]) > rounding else 0.0
