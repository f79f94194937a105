"""Top-k selection on the CPU with exact counts; among equal scores the first stay.

Floats are ranked as integers: the bits of a float that is not negative order as the float does, those of
a negative one in reverse, and the key of -0 is that of 0. Scores must be finite.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.linalg.kernels.threads import over_rows

Floats = NDArray[np.float32] | NDArray[np.float64]
Keep = NDArray[np.bool_]

DIGIT = 16
"""Bits of a key that one histogram ranks."""

LONG = 65536
"""Rows longer than this are ranked by histograms over the row, which no longer fits into a cache."""


def keep_largest_rows(scores: Floats, kept: int, threads: int) -> Keep:
    """Mask (rows, length) of the `kept` largest scores of each row, 0 < kept < length; scores contiguous."""
    rows, length = scores.shape
    keep = np.empty(scores.shape, np.bool_)
    bits = scores.view(np.int32 if scores.itemsize == 4 else np.int64)
    if length == 4:
        over_rows(lambda start, stop: _fours(scores[start:stop], kept, keep[start:stop]), rows, threads)
    elif length <= 16:
        over_rows(lambda start, stop: _groups(scores[start:stop], kept, keep[start:stop]), rows, threads)
    elif length <= LONG:
        over_rows(lambda start, stop: _rows(bits[start:stop], kept, keep[start:stop]), rows, threads)
    else:
        for row in range(rows):
            _select_long(bits[row], kept, keep[row], threads)
    return keep


def _select_long(bits: NDArray[np.signedinteger], kept: int, keep: Keep, threads: int) -> None:
    """One long row: a histogram of the keys' upper bits finds the bucket of the threshold, which is then ranked."""
    pieces = min(threads, max(1, bits.size // LONG))
    bounds = [bits.size * piece // pieces for piece in range(pieces + 1)]
    counts = np.zeros((pieces, 1 << DIGIT), np.int64)

    def count(first: int, last: int) -> None:
        for piece in range(first, last):
            _histogram(bits[bounds[piece] : bounds[piece + 1]], counts[piece])

    over_rows(count, pieces, pieces)
    bucket, missing = _bucket(counts.sum(0), kept)
    listed: list[NDArray[np.int64]] = [np.empty(int(counts[piece, bucket]) + 1, np.int64) for piece in range(pieces)]

    def mark(first: int, last: int) -> None:
        for piece in range(first, last):
            start, stop = bounds[piece], bounds[piece + 1]
            _mark(bits[start:stop], bucket, keep[start:stop], listed[piece])
            listed[piece] += start

    over_rows(mark, pieces, pieces)
    places = np.concatenate([part[:-1] for part in listed])
    _rank(bits, places, missing, keep)


@njit(nogil=True, cache=True)
def _key(bits: int, low: int) -> int:
    """Integer that orders as the float with these bits does; low: the lowest integer of the dtype."""
    return bits if bits >= 0 else low - bits


@njit(nogil=True, cache=True)
def _histogram(bits, counts):  # type: ignore[no-untyped-def]
    """Count the upper 16 bits of every key in `counts`."""
    low = np.int64(np.iinfo(bits.dtype).min)
    shift = bits.itemsize * 8 - DIGIT
    for i in range(bits.size):
        counts[(_key(np.int64(bits[i]), low) >> shift) + (1 << (DIGIT - 1))] += 1


@njit(nogil=True, cache=True)
def _bucket(counts, kept):  # type: ignore[no-untyped-def]
    """The bucket of the `kept`-th largest key, and how many of its keys are among the kept."""
    missing = kept
    bucket = counts.size - 1
    while counts[bucket] < missing:
        missing -= counts[bucket]
        bucket -= 1
    return bucket, missing


@njit(nogil=True, cache=True)
def _mark(bits, bucket, keep, places):  # type: ignore[no-untyped-def]
    """Keep what is above the bucket and list in `places` what is in it.

    Every index is written, without a branch, and kept only if it counts: hence one more entry in `places`.
    """
    low = np.int64(np.iinfo(bits.dtype).min)
    shift = bits.itemsize * 8 - DIGIT
    wanted = bucket - (1 << (DIGIT - 1))
    count = 0
    for i in range(bits.size):
        digit = _key(np.int64(bits[i]), low) >> shift
        keep[i] = digit > wanted
        places[count] = i
        count += digit == wanted


@njit(nogil=True, cache=True)
def _rank(bits, places, missing, keep):  # type: ignore[no-untyped-def]
    """Keep the `missing` largest of `places`, whose upper bits agree, ranking 16 lower bits at a time."""
    low = np.int64(np.iinfo(bits.dtype).min)
    counts = np.empty(1 << DIGIT, np.int64)
    shift = bits.itemsize * 8 - DIGIT
    left = places.size
    while shift > 0 and missing < left:
        shift -= DIGIT
        counts[:] = 0
        for j in range(left):
            counts[(_key(np.int64(bits[places[j]]), low) >> shift) & (counts.size - 1)] += 1
        bucket, missing = _bucket(counts, missing)
        same = 0
        for j in range(left):
            place = places[j]
            digit = (_key(np.int64(bits[place]), low) >> shift) & (counts.size - 1)
            if digit > bucket:
                keep[place] = True
            elif digit == bucket:
                places[same] = place
                same += 1
        left = same
    for j in range(missing):
        keep[places[j]] = True


@njit(nogil=True, cache=True)
def _rows(bits, kept, keep):  # type: ignore[no-untyped-def]
    """Rows that fit into a cache: bisect for a key that `kept` of the row reach."""
    low = np.int64(np.iinfo(bits.dtype).min)
    keys = np.empty_like(bits[0])
    for r in range(bits.shape[0]):
        for i in range(keys.size):
            keys[i] = _key(np.int64(bits[r, i]), low)
        least, most = np.int64(keys.min()), np.int64(keys.max())
        reached = keys.size
        while least < most and reached != kept:
            middle = (least | most) - ((least ^ most) >> 1)  # their mean, rounded up, without overflow
            pivot, count = bits.dtype.type(middle), 0
            for i in range(keys.size):
                count += keys[i] >= pivot
            if count >= kept:
                least, reached = middle, count
            else:
                most = middle - 1
        above, pivot = 0, bits.dtype.type(least)
        for i in range(keys.size):
            keep[r, i] = keys[i] > pivot
            above += keys[i] > pivot
        missing = kept - above
        for i in range(keys.size):
            if missing == 0:
                break
            if keys[i] == pivot:
                keep[r, i] = True
                missing -= 1


@njit(nogil=True, cache=True)
def _groups(scores, kept, keep):  # type: ignore[no-untyped-def]
    """Short rows: an entry stays if fewer than `kept` beat it, earlier ones by being equal already."""
    for r in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            better = 0
            for j in range(i):
                better += scores[r, j] >= scores[r, i]
            for j in range(i + 1, scores.shape[1]):
                better += scores[r, j] > scores[r, i]
            keep[r, i] = better < kept


@njit(nogil=True, cache=True)
def _fours(scores, kept, keep):  # type: ignore[no-untyped-def]
    """`_groups` written out for rows of four: seven times as fast."""
    for r in range(scores.shape[0]):
        a, b, c, d = scores[r, 0], scores[r, 1], scores[r, 2], scores[r, 3]
        ab, ac, ad, bc, bd, cd = int(a >= b), int(a >= c), int(a >= d), int(b >= c), int(b >= d), int(c >= d)
        keep[r, 0] = 3 - ab - ac - ad < kept
        keep[r, 1] = 2 + ab - bc - bd < kept
        keep[r, 2] = 1 + ac + bc - cd < kept
        keep[r, 3] = ad + bd + cd < kept
