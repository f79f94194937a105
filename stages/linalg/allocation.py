"""Layer-wise sparsity allocation: how a model's overall sparsity is distributed over its blocks or linears."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

import torch
from torch import Tensor

from stages.linalg.error import row_energies
from stages.linalg.masks import removed_count

SAMPLE = 1 << 16
"""Number of scores that a linear's error curve is made from, evenly spaced among all."""
STEPS = 60
"""Bisection steps for the common error."""


def outlier_ratio(scores: Sequence[Tensor], factor: float) -> float:
    """Share of a block's scores |w_ij| ‖x_j‖ that exceed `factor` times their mean (OWL, Yin et al. 2023, eq. 1)."""
    total = sum(score.numel() for score in scores)
    mean = sum(float(score.double().sum()) for score in scores) / total
    return sum(int((score > factor * mean).sum()) for score in scores) / total


def by_outliers(ratios: Sequence[float], weights: Sequence[int], sparsity: float, spread: float) -> list[float]:
    """OWL's sparsity of each block: more outliers, less sparsity, within `spread` of `sparsity` (OWL, section 4).

    ratios: `outlier_ratio` of each block; weights: how many each block has.

    The mean over weights is `sparsity`. Departs from the paper: its code spreads the ratios
    over 2λ and then centres them, so that a single block with outliers differs by nearly 2λ. Here all differences
    are then scaled by the largest number up to 1 that keeps every block within λ = `spread`, and in [0, 1].
    """
    ratio, weight = torch.tensor(ratios, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    width = float(ratio.max() - ratio.min())
    if width == 0 or sparsity in (0, 1):
        return [sparsity] * len(ratios)
    place = (ratio - ratio.min()) / width * 2 * spread
    centred = place - (place * weight).sum() / weight.sum()
    least, most = _bounds(sparsity, spread)
    largest = max(float(centred.max()) / (sparsity - least), float(-centred.min()) / (most - sparsity), 1.0)
    return (sparsity - centred / largest).clamp(least, most).tolist()


def error_curve(dense: Tensor, gram: Tensor) -> Tensor:
    """Relative error of a linear without its k smallest scores w² G_jj, k in 0 .. samples, (samples + 1,) float64.

    dense: (d_out, d_in); gram: (d_in, d_in).

    Exact for a diagonal Gram matrix; otherwise it ranks linears and does not estimate what refits reach.
    """
    scores = (dense.square() * gram.diagonal()).flatten()
    sample = scores[:: max(scores.numel() // SAMPLE, 1)].double().sort().values
    lost = torch.cat([sample.new_zeros(1), sample.cumsum(0)]) * (scores.numel() / sample.numel())
    energy = float(row_energies(dense, gram).double().sum())
    return (lost / energy).cpu() if energy > 0 else torch.zeros_like(lost).cpu()


def by_error(curves: Sequence[Tensor], weights: Sequence[int], sparsity: float, spread: float) -> list[float]:
    """Sparsity of each linear at which all have the same error on their `error_curve`, within `spread` of `sparsity`.

    A bisection finds the common error at which the mean over weights (how many each linear has) is `sparsity`.
    """
    weight = torch.tensor(weights, dtype=torch.float64)
    least, most = _bounds(sparsity, spread)

    def sparsities_at(error: float) -> Tensor:
        value = torch.tensor([error], dtype=torch.float64)
        places = [float(torch.searchsorted(curve, value, right=True) - 1) / (len(curve) - 1) for curve in curves]
        return torch.tensor(places, dtype=torch.float64).clamp(least, most)

    low, high = 0.0, max(float(curve[-1]) for curve in curves)
    for _ in range(STEPS):
        middle = (low + high) / 2
        mean = float((sparsities_at(middle) * weight).sum() / weight.sum())
        low, high = (middle, high) if mean < sparsity else (low, middle)
    return sparsities_at(high).tolist()


def _bounds(sparsity: float, spread: float) -> tuple[float, float]:
    """Lowest and highest sparsity allowed."""
    return max(sparsity - spread, 0.0), min(sparsity + spread, 1.0)


def exact_counts(sparsities: Sequence[float], weights: Sequence[int], sparsity: float, spread: float) -> list[int]:
    """Number of weights kept in each linear: by its sparsity, then shifted evenly until the total is exact.

    Every count stays within `spread` of what `sparsity` leaves, to the next whole number.
    """
    total, (least, most) = sum(weights), _bounds(sparsity, spread)
    fewest, largest = [floor(count * (1 - most)) for count in weights], [ceil(count * (1 - least)) for count in weights]
    kept = [
        min(max(count - removed_count(count, share), low), high)
        for count, share, low, high in zip(weights, sparsities, fewest, largest, strict=True)
    ]
    missing = total - removed_count(total, sparsity) - sum(kept)
    # A linear at its bound takes no share; what it leaves over goes to the others in the next round.
    while missing:
        step = 1 if missing > 0 else -1
        free = [i for i, count in enumerate(kept) if fewest[i] <= count + step <= largest[i]]
        share, rest = divmod(abs(missing), len(free))
        for place, i in enumerate(free):
            wanted = step * (share + (place < rest))
            moved = min(max(kept[i] + wanted, fewest[i]), largest[i]) - kept[i]
            kept[i] += moved
            missing -= moved
    return kept
