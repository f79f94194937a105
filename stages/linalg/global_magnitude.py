"""Global magnitude pruning: the counts it keeps in each tensor, without having all weights in memory together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from stages.linalg.masks import removed_count

HALF = 16
"""Bits of a float32 in each of the two histograms: the upper, then the lower ones."""


def kept_by_global_magnitude(weights: Callable[[], Iterable[Tensor]], sparsity: float) -> list[int]:
    """Number of weights kept in each tensor when the smallest |w| of all tensors together are removed.

    weights: yields the tensors anew each time it is called (three times). Exact: the counts add up to
    the total less removed_count(total, sparsity); among equal magnitudes the last in order go first, as
    in `keep_largest`. Non-negative floats order as their bits do, so two histograms of 16 bits find the
    threshold without sorting.
    """
    upper = sum((_histogram(_bits(weight) >> HALF) for weight in weights()), torch.zeros(1 << HALF, dtype=torch.int64))
    total = int(upper.sum())
    removed = removed_count(total, sparsity)
    if removed == 0:
        return [weight.numel() for weight in weights()]
    bucket, before = _bucket(upper, removed)
    lower = torch.zeros(1 << HALF, dtype=torch.int64)
    for weight in weights():
        bits = _bits(weight)
        lower += _histogram(bits[bits >> HALF == bucket] & ((1 << HALF) - 1))
    rest, below = _bucket(lower, removed - before)
    threshold = (bucket << HALF) | rest
    tied_kept = int(lower[rest]) - (removed - before - below)
    kept = []
    for weight in weights():
        bits = _bits(weight)
        ties = min(int((bits == threshold).sum()), tied_kept)
        tied_kept -= ties
        kept.append(int((bits > threshold).sum()) + ties)
    return kept


def _bits(weight: Tensor) -> Tensor:
    """|w| as int32, whose order is that of the float32 values."""
    return weight.float().abs().contiguous().view(torch.int32).flatten()


def _histogram(values: Tensor) -> Tensor:
    return torch.bincount(values, minlength=1 << HALF).cpu()


def _bucket(histogram: Tensor, count: int) -> tuple[int, int]:
    """The bucket that holds the `count`-th smallest value, and how many are in the buckets before it."""
    cumulative = histogram.cumsum(0)
    bucket = int(torch.searchsorted(cumulative, count))
    return bucket, int(cumulative[bucket] - histogram[bucket])
