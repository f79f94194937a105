"""Output reconstruction error of linears, computed from the Gram matrix of their input."""

from __future__ import annotations

import torch
from torch import Tensor


def row_energies(weight: Tensor, gram: Tensor) -> Tensor:
    """diag(W G Wᵀ), (d_out,): mean over tokens of each output's square; weight: (d_out, d_in), gram: (d_in, d_in)."""
    return torch.einsum("ij,ij->i", weight @ gram, weight)


def relative_error(weight: Tensor, dense: Tensor, gram: Tensor, rows: tuple[int, ...]) -> tuple[float, ...]:
    """Relative error ‖XΔᵀ‖² / ‖XW₀ᵀ‖² of each linear, Δ = W - W₀; rows: how many of weight's rows each linear has.

    0 where the dense output is 0 on all tokens, since there is nothing to reconstruct.
    """
    lost = row_energies(weight - dense, gram).double().split(rows)
    there = row_energies(dense, gram).double().split(rows)
    return tuple(
        float(part.sum() / whole.sum()) if float(whole.sum()) > 0 else 0.0
        for part, whole in zip(lost, there, strict=True)
    )
