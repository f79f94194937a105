"""Reconstruction error of a linear, from its Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def row_energies(weight: Tensor, gram: Tensor) -> Tensor:
    """diag(W G Wᵀ), (d_out,): mean over tokens of each output's square."""
    return torch.einsum("ij,ij->i", weight @ gram, weight)


def relative_error(weight: Tensor, dense: Tensor, gram: Tensor, rows: tuple[int, ...]) -> tuple[float, ...]:
    """‖XΔᵀ‖² / ‖XW₀ᵀ‖² of each linear, where `rows` tells how many rows each has.

    0 where the dense output is 0 on all tokens: nothing was there to be reconstructed.
    """
    lost = row_energies(weight - dense, gram).double().split(rows)
    there = row_energies(dense, gram).double().split(rows)
    return tuple(
        float(part.sum() / whole.sum()) if float(whole.sum()) > 0 else 0.0
        for part, whole in zip(lost, there, strict=True)
    )
