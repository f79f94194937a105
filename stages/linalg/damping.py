"""Factorisation of an ill-conditioned matrix with damping that is raised until it succeeds; the result holds both."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from stages.errors import NotPositiveDefiniteError

ATTEMPTS = 3
"""Dampings tried: the given one, then ten times as much each time."""


class DampedFactor(NamedTuple):
    """factor: of the damped matrix; damping: the value that sufficed; attempts: factorisations it took."""

    factor: Tensor
    damping: float
    attempts: int


def factor_with_damping(
    factorise: Callable[[float], Tensor | None], damping: float, refusal: Callable[[float], str], least: float = 0.0
) -> DampedFactor:
    """The first factor that exists for `damping`, 10 `damping` and 100 `damping`.

    factorise: from a damping to the factor of the matrix damped by it; None where there is none.
    refusal:   from the last damping tried to the error's text.
    least:     a retry's damping is at least this much, so that a damping of 0 is raised too.

    Raises NotPositiveDefiniteError where no damping suffices.
    """
    tried = damping
    for attempt in range(1, ATTEMPTS + 1):
        factor = factorise(tried)
        if factor is not None:
            return DampedFactor(factor, tried, attempt)
        last, tried = tried, max(10 * tried, least)
    raise NotPositiveDefiniteError(refusal(last))
