"""SparseGPT's column sweep over one tile (linalg/tiles.py), compiled for the CPU, for a range of rows."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

FUSED = {"contract"}
"""A product and a sum may be rounded once; nothing else of the order of operations may change."""


@njit(nogil=True, cache=True, fastmath=FUSED, error_model="numpy")  # pragma: no cover
def prune_rows(
    weight: Floats,
    keep: Bools,
    upper: Floats,
    inverse: Floats,
    errors: Floats,
    first: int,
    start: int,
    stop: int,
    n_keep: int,
    group_size: int,
    top: int,
    bottom: int,
) -> None:
    """Prune columns start..stop of a tile in rows top..bottom; later columns of the tile make up for it.

    weight, keep: (d_out, d_in), C-contiguous, of which the tile is columns first..first + c.
    upper:        (c, c) upper factor of the tile; inverse: (c,) one over its diagonal.
    errors:       (d_out, c), written in columns start..stop.
    group_size:   above 0: `n_keep` of every group stay, chosen when the group is reached; 0: keep is given.
    """
    last = first + upper.shape[0]
    places = np.empty(stop - start + 1, np.int64)
    scores = np.empty(max(group_size, 1), weight.dtype)
    step = group_size if group_size > 0 else stop - start
    for r in range(top, bottom):
        row, kept, error = weight[r, first:last], keep[r, first:last], errors[r]
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            if group_size > 0:
                _choose(row, inverse, kept, scores, begin, end, n_keep)
            count = 0
            for j in range(begin, end):
                error[j] = 0
                places[count] = j  # without a branch, which a random mask would make the processor guess wrong
                count += not kept[j]
            _remove(row, upper, inverse, error, places, count)


@njit(nogil=True, cache=True, fastmath=FUSED, error_model="numpy")  # pragma: no cover
def _choose(row: Floats, inverse: Floats, kept: Bools, scores: Floats, begin: int, end: int, n_keep: int) -> None:
    """Keep the `n_keep` largest scores of a group; among equal scores the first stay."""
    size = end - begin
    for i in range(size):
        scores[i] = (row[begin + i] * inverse[begin + i]) ** 2
    for i in range(size):
        ahead = 0
        for k in range(size):
            ahead += (scores[k] > scores[i]) | ((scores[k] == scores[i]) & (k < i))
        kept[begin + i] = ahead < n_keep


@njit(nogil=True, cache=True, fastmath=FUSED, error_model="numpy")  # pragma: no cover
def _remove(row: Floats, upper: Floats, inverse: Floats, error: Floats, places: NDArray[np.int64], count: int) -> None:
    """Remove `count` weights of a row, four at a time, so that a pass over the row serves all four.

    The errors of the four follow from each other first; that the pass also changes the four does not
    matter, since they become zero.
    """
    quads = count // 4 * 4
    for i in range(0, quads, 4):
        j, k, m, n = places[i], places[i + 1], places[i + 2], places[i + 3]
        a = row[j] * inverse[j]
        b = (row[k] - a * upper[j, k]) * inverse[k]
        c = (row[m] - a * upper[j, m] - b * upper[k, m]) * inverse[m]
        d = (row[n] - a * upper[j, n] - b * upper[k, n] - c * upper[m, n]) * inverse[n]
        error[j], error[k], error[m], error[n] = a, b, c, d
        tail = row[j + 1 :]
        u, v, x, y = upper[j, j + 1 :], upper[k, j + 1 :], upper[m, j + 1 :], upper[n, j + 1 :]
        for p in range(tail.shape[0]):
            tail[p] -= a * u[p] + b * v[p] + c * x[p] + d * y[p]
        row[j] = row[k] = row[m] = row[n] = 0
    for i in range(quads, count):
        j = places[i]
        a = row[j] * inverse[j]
        error[j] = a
        tail, u = row[j + 1 :], upper[j, j + 1 :]
        for p in range(tail.shape[0]):
            tail[p] -= a * u[p]
        row[j] = 0
