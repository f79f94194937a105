"""The split of calibration sequences into fitted and held-out ones: one rule for every stage."""

from __future__ import annotations

HELD_OUT = 8
"""One calibration sequence in this many is held out, to choose hyper-parameters by."""


def fitted_sequences(sequences: int) -> int:
    """How many of the calibration sequences are fitted to: the first ones; the rest, at least one, is held out.

    Of a single sequence none is left to fit to: callers refuse fewer than two.
    """
    return sequences - max(sequences // HELD_OUT, 1)


def split_chunk(start: int, stop: int, sequences: int) -> tuple[int, int]:
    """Of the chunk of sequences [start, stop): how many, the first ones, are fitted to, and how many are held out."""
    fitted = min(max(fitted_sequences(sequences) - start, 0), stop - start)
    return fitted, stop - start - fitted
