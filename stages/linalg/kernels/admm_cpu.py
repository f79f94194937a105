"""Elementwise updates of an ADMM step (linalg/admm.py) on the CPU: each matrix is read and written once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.linalg.kernels.threads import over_rows

Floats = NDArray[np.floating[Any]]
Keep = NDArray[np.bool_]


def admm_rhs(target: Floats, total: Floats, keep: Keep, ratio: float, out: Floats, threads: int) -> None:
    """Right-hand side of the ADMM W-update, out ← Z - ratio U - T; all (rows, d)."""
    strength = target.dtype.type(-ratio)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _rhs(target[part], total[part], keep[part], strength, out[part])

    over_rows(work, len(target), threads)


def admm_update(
    target: Floats, move: Floats, total: Floats, keep: Keep, relax: float, ratio: float, threads: int
) -> None:
    """Z- and U-update of ADMM in place, total ← relax (T + move) + (1 - relax) Z + ratio U; all (rows, d)."""
    one, kind = target.dtype.type(1), target.dtype.type
    settings = kind(relax), one - kind(relax), kind(ratio)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _update(target[part], move[part], total[part], keep[part], *settings)

    over_rows(work, len(target), threads)


@njit(nogil=True, cache=True)
def _rhs(target, total, keep, minus_ratio, out):  # type: ignore[no-untyped-def]
    for r in range(target.shape[0]):
        for j in range(target.shape[1]):
            share = total.dtype.type(1) if keep[r, j] else minus_ratio
            out[r, j] = share * total[r, j] - target[r, j]


@njit(nogil=True, cache=True)
def _update(target, move, total, keep, relax, rest, ratio):  # type: ignore[no-untyped-def]
    for r in range(target.shape[0]):
        for j in range(target.shape[1]):
            share = rest if keep[r, j] else ratio
            total[r, j] = relax * (target[r, j] + move[r, j]) + share * total[r, j]
