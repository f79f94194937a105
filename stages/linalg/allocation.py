"""How much each linear loses when a whole model is to lose a given number of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stages.linalg.error import row_energies
from stages.linalg.masks import removed_count

SAMPLE = 1 << 16
"""Scores of a linear that its error curve is made from: evenly spaced ones of all."""
STEPS = 60
"""Halvings of the interval in which the common error lies."""


def outlier_ratio(scores: Sequence[Tensor], factor: float) -> float:
    """Share of a block's scores |w_ij| ‖x_j‖ that exceed `factor` times their mean (OWL, Yin et al. 2023, eq. 1)."""
    total = sum(score.numel() for score in scores)
    mean = sum(float(score.double().sum()) for score in scores) / total
    return sum(int((score > factor * mean).sum()) for score in scores) / total


def by_outliers(ratios: Sequence[float], weights: Sequence[int], sparsity: float, spread: float) -> list[float]:
    """Sparsity of each block: those with more outliers lose less, within `spread` of `sparsity` (OWL, section 4).

    The mean over weights (how many each block has) is `sparsity`.
    """
    ratio, weight = torch.tensor(ratios, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
    width = float(ratio.max() - ratio.min())
    if width == 0:
        return [sparsity] * len(ratios)
    place = (ratio - ratio.min()) / width * 2 * spread
    centred = place - (place * weight).sum() / weight.sum()
    return [float(min(max(sparsity - one, 0.0), 1.0)) for one in centred]


def error_curve(dense: Tensor, gram: Tensor) -> Tensor:
    """Relative error of a linear that loses its k least scores w² G_jj, k in 0 .. samples, (samples + 1,) float64.

    What a diagonal Gram matrix would give: an order of linears, not an estimate of what refits reach.
    """
    scores = (dense.square() * gram.diagonal()).flatten()
    sample = scores[:: max(scores.numel() // SAMPLE, 1)].double().sort().values
    lost = torch.cat([sample.new_zeros(1), sample.cumsum(0)]) * (scores.numel() / sample.numel())
    energy = float(row_energies(dense, gram).double().sum())
    return (lost / energy).cpu() if energy > 0 else torch.zeros_like(lost).cpu()


def by_error(curves: Sequence[Tensor], weights: Sequence[int], sparsity: float, spread: float) -> list[float]:
    """Sparsity of each linear, such that all have the same error on their curve, within `spread` of `sparsity`.

    The mean over weights is `sparsity`, which a bisection of the common error finds.
    """
    weight = torch.tensor(weights, dtype=torch.float64)
    least, most = max(sparsity - spread, 0.0), min(sparsity + spread, 1.0)

    def at(error: float) -> Tensor:
        value = torch.tensor([error], dtype=torch.float64)
        places = [float(torch.searchsorted(curve, value, right=True) - 1) / (len(curve) - 1) for curve in curves]
        return torch.tensor(places, dtype=torch.float64).clamp(least, most)

    low, high = 0.0, max(float(curve[-1]) for curve in curves)
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if float((at(middle) * weight).sum() / weight.sum()) < sparsity else (low, middle)
    return at(high).tolist()


def exact_counts(sparsities: Sequence[float], weights: Sequence[int], sparsity: float) -> list[int]:
    """Weights kept in each linear: as its sparsity says, moved evenly so that the total is exact."""
    total = sum(weights)
    kept = [count - removed_count(count, one) for count, one in zip(weights, sparsities, strict=True)]
    missing = total - removed_count(total, sparsity) - sum(kept)
    while missing:
        step = 1 if missing > 0 else -1
        free = [i for i, one in enumerate(kept) if 0 <= one + step <= weights[i]]
        share, rest = divmod(abs(missing), len(free))
        for place, i in enumerate(free):
            wanted = step * (share + (place < rest))
            moved = min(max(kept[i] + wanted, 0), weights[i]) - kept[i]
            kept[i] += moved
            missing -= moved
    return kept
