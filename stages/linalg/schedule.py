"""Sparsity schedules of iterative hard thresholding: falling counts, a fixed pattern, or an adaptive L0 penalty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.linalg.masks import keep_groups, keep_largest


def cubic_count(total: int, kept: int, step: int, steps: int) -> int:
    """Cubic sparsity schedule: how many of `total` stay after `step` of `steps`.

    kept + (total - kept)(1 - step/steps)³, rounded down (Zhu, Gupta 2017, arXiv:1710.01878, eq. 1): it removes most
    while there is most to spare.
    """
    return kept + int((total - kept) * (1 - step / steps) ** 3)


@dataclass(frozen=True)
class SparsityPattern:
    """How many weights of one linear stay, and which of them compete: unstructured, by row, or N:M.

    rows:   rows of the linear.
    kept:   weights that stay, of each row where `by_row`, else of the whole linear.
    by_row: whether weights compete within their row only.
    groups: (n_keep, group_size) for N:M, which then decides alone.
    spare:  weights of the whole linear that stay beyond those of the groups.
    """

    rows: int
    kept: int
    by_row: bool = False
    groups: tuple[int, int] | None = None
    spare: int = 0

    def select(self, scores: Tensor) -> Tensor:
        """Mask (rows, d_in) of the largest of non-negative scores: exactly as many as the pattern keeps."""
        if self.groups is not None:
            keep = keep_groups(scores, *self.groups)
            if self.spare == 0:
                return keep
            others = torch.where(keep, -1.0, scores).flatten()
            return keep.logical_or_(keep_largest(others, self.spare).view_as(keep))
        if self.by_row:
            return keep_largest(scores, self.kept)
        return keep_largest(scores.flatten(), self.kept).view_as(scores)

    def competitors(self, d_in: int) -> int:
        """How many weights compete for the `kept` ones."""
        return d_in if self.by_row else self.rows * d_in

    def loosened(self, d_in: int, step: int, steps: int) -> SparsityPattern:
        """The pattern that the cubic schedule has after `step` of `steps`: looser than this one, at the end this one.

        On the way to N:M every group keeps its n_keep largest, and the largest of all other weights stay with them.
        """
        if self.groups is not None:
            n_keep, size = self.groups
            removed = self.rows * d_in // size * (size - n_keep)
            return replace(self, spare=cubic_count(removed, 0, step, steps))
        return replace(self, kept=cubic_count(self.competitors(d_in), self.kept, step, steps))


@dataclass(frozen=True)
class ThresholdStep:
    """The hard-thresholding operator of one step.

    select:  from magnitudes (rows, d_in) of values after a gradient step to the mask of those that stay.
    penalty: λ of every kept weight, broadcast over (rows, d_in); None where only the counts decide.
    """

    select: Callable[[Tensor], Tensor]
    penalty: Tensor | None = None

    def cost(self, keep: Tensor) -> float:
        """λ‖W‖₀ of a weight with this mask; 0 where only the counts decide."""
        return 0.0 if self.penalty is None else float((keep * self.penalty).double().sum())


ThresholdRule = Callable[[int, Tensor], ThresholdStep]
"""From the number of a step (0, 1, ...) and the mask before it to the step's thresholding."""


def falling_counts(pattern: SparsityPattern, d_in: int, steps: int) -> ThresholdRule:
    """Rule of exact counts that fall on the cubic schedule and reach the pattern at the last step."""
    return lambda step, _: ThresholdStep(pattern.loosened(d_in, step + 1, steps).select)


def same_pattern(pattern: SparsityPattern) -> ThresholdRule:
    """Rule that applies the pattern itself at every step (mAIHT, appendix D.3, for N:M)."""
    return lambda step, _: ThresholdStep(pattern.select)


class AdaptivePenalty:
    """Adaptive L0 penalty: λ ← λ(1 + (‖W‖₀ - s)/(d₁d₂)) before every step (mAIHT, section 2.4).

    A weight stays if its magnitude exceeds √(2αλ), the threshold of the proximal operator of αλ‖·‖₀.
    λ begins at Q²/(2α), Q the 1 % quantile of |T|, so that 99 % would stay. One λ for a linear or, where
    weights compete within rows, one for each row.
    """

    def __init__(self, target: Tensor, pattern: SparsityPattern, alpha: float) -> None:
        groups = target.abs() if pattern.by_row else target.abs().view(1, -1)
        self._pattern, self._alpha, self._competitors = pattern, alpha, groups.shape[1]
        rank = max(1, round(0.01 * groups.shape[1]))
        self._penalty = groups.kthvalue(rank, dim=1, keepdim=True).values.square() / (2 * alpha)

    def __call__(self, step: int, keep: Tensor) -> ThresholdStep:
        """The thresholding of the next step, with λ adapted to the mask before it."""
        kept = keep.sum(1, keepdim=True) if self._pattern.by_row else keep.sum().view(1, 1)
        excess = (kept - self._pattern.kept).to(self._penalty.dtype) / self._competitors
        self._penalty = self._penalty * (1 + excess)
        threshold = (2 * self._alpha * self._penalty).sqrt()
        return ThresholdStep(lambda scores: torch.gt(scores, threshold), self._penalty)
