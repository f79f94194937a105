"""Cholesky factor of the inverse of a damped Gram matrix, as SparseGPT and OBC use it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError
from stages.linalg.damping import factor_with_damping

PANEL = 128
"""Columns factored or inverted together; everything between panels is a matrix product."""


class InverseFactor(NamedTuple):
    """upper: (d, d) upper triangular U with UᵀU = (G / mean(diag G) + damping I)⁻¹.

    damping: the value used; attempts: factorisations it took, more than 1 where it was raised.
    """

    upper: Tensor
    damping: float
    attempts: int


def inverse_factor(gram: Tensor, damping: float, tokens: int | None = None) -> InverseFactor:
    """Upper Cholesky factor of the inverse of a damped Gram matrix, (d, d).

    Scaled to mean(diag) = 1 first, so that the units of the activations do not matter. G = R Rᵀ with an
    upper triangular R, a Cholesky factorisation that begins at the last row, gives G⁻¹ = UᵀU for U = R⁻¹:
    one factorisation and one triangular inverse, each d³/3 operations in place, where the public
    SparseGPT code factors, inverts and factors again.

    damping: added to diag(G), as a fraction of its mean. Raised tenfold, at most twice, where the
    factorisation fails; the result tells the value used.
    tokens:  how many G is a mean over, for the error's text.
    Raises NotPositiveDefiniteError when no attempt succeeds.
    """
    scale = gram.diagonal().mean()
    if not torch.isfinite(scale) or scale <= 0:
        raise NotPositiveDefiniteError(
            f"{_shape(gram)} Gram matrix has mean diagonal {float(scale):g}: expected more than 0; "
            "its inputs are all zero (or not finite) on this calibration text: use other text or a rule that "
            "leaves this linear dense (sparsity: 0)"
        )
    seen = "" if tokens is None else f" (got {tokens} tokens)"
    root, used, attempts = factor_with_damping(
        lambda tried: _upper_root(gram, scale, tried),
        damping,
        lambda last: (
            f"{_shape(gram)} Gram matrix is not positive definite after damping {last:g}: use more calibration tokens "
            f"than {gram.shape[0]}{seen} or raise the method's damping"
        ),
    )
    return InverseFactor(_inverted(root), used, attempts)


def _upper_root(gram: Tensor, scale: Tensor, damping: float) -> Tensor | None:
    """Upper R with R Rᵀ = G / scale + damping I, or None where there is none; holds one matrix and a panel.

    Panel by panel from the right. torch.linalg.cholesky of the whole matrix takes twice the time on the
    CPU from d = 1536 on.
    """
    root = gram / scale
    root.diagonal().add_(damping)
    for stop in range(len(root), 0, -PANEL):
        start = max(stop - PANEL, 0)
        root[:stop, start:stop].addmm_(root[:stop, stop:], root[start:stop, stop:].mT, alpha=-1)
        lower, info = torch.linalg.cholesky_ex(root[start:stop, start:stop].flip(0, 1))
        corner = lower.flip(0, 1)
        if int(info) != 0 or not bool(torch.isfinite(corner.diagonal()).all()):
            return None
        above = torch.linalg.solve_triangular(corner.mT, root[:start, start:stop], upper=False, left=False)
        root[:start, start:stop], root[start:stop, start:stop] = above, corner
        root[stop:, start:stop] = 0.0
    return root


def _inverted(root: Tensor) -> Tensor:
    """R⁻¹ of an upper triangular R, written over it panel by panel from the left."""
    for start in range(0, len(root), PANEL):
        stop = min(start + PANEL, len(root))
        identity = torch.eye(stop - start, dtype=root.dtype, device=root.device)
        corner = torch.linalg.solve_triangular(root[start:stop, start:stop], identity, upper=True)
        above = root[:start, start:stop] @ corner.neg()
        for top in range(0, start, PANEL):
            root[top : top + PANEL, start:stop] = root[top : top + PANEL, top:start] @ above[top:]
        root[start:stop, start:stop] = corner
    return root


def _shape(gram: Tensor) -> str:
    return f"{gram.shape[0]} x {gram.shape[1]}"
