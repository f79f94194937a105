"""Fused passes of an iterative hard-thresholding step on the CPU: each reads its matrices once, sums row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.linalg.kernels.threads import over_rows

Floats = NDArray[np.floating[Any]]
Keep = NDArray[np.bool_]

LAX = {"reassoc", "nsz", "contract"}
"""Sums may be added in another order, which vector instructions need; infinities and NaN stay as they are."""


def extrapolate(
    here: Floats, probe: Floats, before: Floats, toward: float, beyond: float, threads: int
) -> tuple[Floats, Floats]:
    """Momentum step x = here + toward (probe - here) + beyond (here - before), and |x|; all (rows, d)."""
    values, scores = np.empty_like(here), np.empty_like(here)
    a, b = here.dtype.type(toward), here.dtype.type(beyond)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _extrapolate(here[part], probe[part], before[part], a, b, values[part], scores[part])

    over_rows(work, len(here), threads)
    return values, scores


def offset_of(values: Floats, keep: Keep, target: Floats, threads: int) -> Floats:
    """Offset of a thresholded weight from the target, keep ⊙ values - target; all (rows, d)."""
    offset = np.empty_like(values)

    def work(start: int, stop: int) -> None:
        _offset(values[start:stop], keep[start:stop], target[start:stop], offset[start:stop])

    over_rows(work, len(values), threads)
    return offset


def gradient_step(
    offset: Floats, gradient: Floats, target: Floats, alpha: float, threads: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradient step target + offset - alpha gradient, written over the gradient, all (rows, d).

    Returns <offset, gradient> and |gradient|² of each row, (rows,).
    """
    inner, square = np.empty(len(offset)), np.empty(len(offset))
    length = offset.dtype.type(alpha)

    def work(start: int, stop: int) -> None:
        part = slice(start, stop)
        _gradient_step(offset[part], gradient[part], target[part], length, inner[part], square[part])

    over_rows(work, len(offset), threads)
    return inner, square


def dropped_square(values: Floats, keep: Keep, threads: int) -> NDArray[np.float64]:
    """Sum of values² that are not kept, of each row (rows,)."""
    lost = np.empty(len(values))
    over_rows(
        lambda start, stop: _dropped(values[start:stop], keep[start:stop], lost[start:stop]), len(values), threads
    )
    return lost


def threshold_gap(values: Floats, threshold: float, threads: int) -> NDArray[np.float64]:
    """Sum of max(threshold² - values², 0), of each row (rows,)."""
    lacking = np.empty(len(values))
    level = values.dtype.type(threshold)
    over_rows(lambda start, stop: _threshold_gap(values[start:stop], level, lacking[start:stop]), len(values), threads)
    return lacking


@njit(nogil=True, cache=True, fastmath=LAX)
def _extrapolate(here, probe, before, toward, beyond, values, scores):  # type: ignore[no-untyped-def]
    for r in range(here.shape[0]):
        for j in range(here.shape[1]):
            x = here[r, j] + toward * (probe[r, j] - here[r, j]) + beyond * (here[r, j] - before[r, j])
            values[r, j] = x
            scores[r, j] = abs(x)


@njit(nogil=True, cache=True, fastmath=LAX)
def _offset(values, keep, target, offset):  # type: ignore[no-untyped-def]
    zero = values.dtype.type(0)
    for r in range(values.shape[0]):
        for j in range(values.shape[1]):
            offset[r, j] = (values[r, j] if keep[r, j] else zero) - target[r, j]


@njit(nogil=True, cache=True, fastmath=LAX)
def _gradient_step(offset, gradient, target, alpha, inner, square):  # type: ignore[no-untyped-def]
    for r in range(offset.shape[0]):
        product = size = offset.dtype.type(0)
        for j in range(offset.shape[1]):
            slope = gradient[r, j]
            product += offset[r, j] * slope
            size += slope * slope
            gradient[r, j] = target[r, j] + (offset[r, j] - alpha * slope)
        inner[r], square[r] = product, size


@njit(nogil=True, cache=True, fastmath=LAX)
def _dropped(values, keep, lost):  # type: ignore[no-untyped-def]
    zero = values.dtype.type(0)
    for r in range(values.shape[0]):
        total = zero
        for j in range(values.shape[1]):
            gone = zero if keep[r, j] else values[r, j]
            total += gone * gone
        lost[r] = total


@njit(nogil=True, cache=True, fastmath=LAX)
def _threshold_gap(values, level, lacking):  # type: ignore[no-untyped-def]
    zero = values.dtype.type(0)
    for r in range(values.shape[0]):
        total = zero
        for j in range(values.shape[1]):
            below = level * level - values[r, j] * values[r, j]
            total += below if below > zero else zero
        lacking[r] = total
