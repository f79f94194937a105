"""Which calibration sequences are fitted to, and which are held out to choose by: one rule for every stage."""

from __future__ import annotations

HELD_OUT = 8
"""One sequence in so many is held out, to choose by."""


def fitted_sequences(sequences: int) -> int:
    """How many of these, the first ones, are fitted to; at least one is held out."""
    return sequences - max(sequences // HELD_OUT, 1)
