"""Diagonal preconditioning: Gram matrices and weights in coordinates where every input has unit energy."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

DEAD = 1e-12
"""Inputs whose mean square is below this fraction of the mean of all are counted as dead."""


class UnitGram(NamedTuple):
    """A rescaled Gram matrix. gram: (d, d) S⁻¹ G S⁻¹ with ones on its diagonal; scale: (d,) the diagonal of S.

    A weight W in the units of G is W S here, and back by a division: ‖XW‖ is the same in both.
    """

    gram: Tensor
    scale: Tensor


def unit_diagonal(gram: Tensor) -> UnitGram:
    """Scale a Gram matrix (d, d) to ones on the diagonal, S = diag(G)^½ (mAIHT, section 4.1).

    Departs from the paper: a dead input, for which S would be 0, gets a tiny scale and an entry of 1, so
    that its weights score lowest and come back unchanged where a pattern keeps them.
    """
    diagonal = gram.diagonal()
    scale = diagonal.clamp(min=float(diagonal.mean()) * DEAD).sqrt()
    unit = gram / scale / scale[:, None]
    unit.fill_diagonal_(1.0)
    return UnitGram(unit, scale)
