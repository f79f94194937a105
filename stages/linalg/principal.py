"""Principal components of hidden states from their Gram matrix, uncentred (SliceGPT, Ashkboos et al. 2024)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Principal(NamedTuple):
    """Leading eigenvectors. basis: (width, kept), orthonormal, most energy first; lost: share of tr G outside them."""

    basis: Tensor
    lost: float


def principal(gram: Tensor, kept: int) -> Principal:
    """The `kept` leading eigenvectors of `gram` (width, width), in float64.

    Signs are fixed, the entry of largest magnitude positive, so that the same Gram matrix gives the same basis.
    """
    values, vectors = torch.linalg.eigh(gram.to(torch.float64))
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    basis = (vectors * largest.sign())[:, :kept].contiguous()
    total = values.sum()
    return Principal(basis, float(values[kept:].sum() / total) if total > 0 else 0.0)
