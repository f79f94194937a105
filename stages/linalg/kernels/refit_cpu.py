"""Conjugate-gradient step of a refit on the CPU, row by row, so that a row stays in the first cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.linalg.kernels.threads import over_rows

Floats = NDArray[np.floating[Any]]

LAX = {"reassoc", "nsz", "contract"}
"""Sums may be added in another order, which vector instructions need; infinities and NaN stay as they are."""


def conjugate_step(
    image: Floats,
    keep: NDArray[np.bool_],
    ridge: float,
    weight: Floats,
    residual: Floats,
    direction: Floats,
    size: Floats,
    threads: int,
) -> None:
    """One conjugate-gradient step of every row: refit.plain_step, in place.

    image: (rows, d) direction @ gram; weight, residual, direction: (rows, d); size: (rows,) squared residual norms.
    """
    strength = image.dtype.type(ridge)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _step(image[part], keep[part], strength, weight[part], residual[part], direction[part], size[part])

    over_rows(work, len(image), threads)


@njit(nogil=True, cache=True, fastmath=LAX)
def _step(image, keep, ridge, weight, residual, direction, size):  # type: ignore[no-untyped-def]
    zero = image.dtype.type(0)
    for r in range(image.shape[0]):
        if size[r] <= zero:
            continue
        curvature = zero
        for j in range(image.shape[1]):
            curvature += direction[r, j] * (image[r, j] + ridge * direction[r, j])
        length = size[r] / curvature if curvature > zero else zero
        now = zero
        for j in range(image.shape[1]):
            weight[r, j] += length * direction[r, j]
            left = residual[r, j] - length * (image[r, j] + ridge * direction[r, j])
            left = left if keep[r, j] else zero
            residual[r, j] = left
            now += left * left
        ratio = now / size[r]
        size[r] = now
        for j in range(image.shape[1]):
            direction[r, j] = residual[r, j] + ratio * direction[r, j]
