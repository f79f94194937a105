"""The elementwise half of an ADMM step on the CPU: each matrix is read and written once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.linalg.kernels.threads import over_rows

Floats = NDArray[np.floating[Any]]
Keep = NDArray[np.bool_]


def settle(target: Floats, move: Floats, total: Floats, keep: Keep, relax: float, ratio: float, threads: int) -> None:
    """`stages.linalg.penalty.settle`, in place in `total`; all (rows, d)."""
    one, kind = target.dtype.type(1), target.dtype.type
    settings = kind(relax), one - kind(relax), kind(ratio)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _settle(target[part], move[part], total[part], keep[part], *settings)

    over_rows(work, len(target), threads)


def mirror(target: Floats, total: Floats, keep: Keep, ratio: float, out: Floats, threads: int) -> None:
    """`stages.linalg.penalty.mirror`, into `out`; all (rows, d)."""
    strength = target.dtype.type(-ratio)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _mirror(target[part], total[part], keep[part], strength, out[part])

    over_rows(work, len(target), threads)


@njit(nogil=True, cache=True)
def _settle(target, move, total, keep, relax, rest, ratio):  # type: ignore[no-untyped-def]
    for r in range(target.shape[0]):
        for j in range(target.shape[1]):
            share = rest if keep[r, j] else ratio
            total[r, j] = relax * (target[r, j] + move[r, j]) + share * total[r, j]


@njit(nogil=True, cache=True)
def _mirror(target, total, keep, turned, out):  # type: ignore[no-untyped-def]
    for r in range(target.shape[0]):
        for j in range(target.shape[1]):
            share = total.dtype.type(1) if keep[r, j] else turned
            out[r, j] = share * total[r, j] - target[r, j]
