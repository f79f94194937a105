"""How many weights are kept at each step on the way to a pattern: counts that fall, or a penalty that adapts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.linalg.masks import keep_groups, keep_largest


def cubic_count(total: int, kept: int, step: int, steps: int) -> int:
    """How many of `total` stay after `step` of `steps`: kept + (total - kept)(1 - step/steps)³, rounded down.

    The schedule of Zhu, Gupta 2017 (arXiv:1710.01878, eq. 1): fast while there is much to spare.
    """
    return kept + int((total - kept) * (1 - step / steps) ** 3)


@dataclass(frozen=True)
class SparsityPattern:
    """What stays of one linear.

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
        """Mask (rows, d_in) of the largest scores, none below 0: exactly as many as there are to stay."""
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
        """How many weights compete for the `kept` places."""
        return d_in if self.by_row else self.rows * d_in

    def on_the_way(self, d_in: int, step: int, steps: int) -> SparsityPattern:
        """The looser pattern that the cubic schedule asks for after `step` of `steps`; at the end this one.

        On the way to N:M every group keeps its own, and the largest of the others stay with them.
        """
        if self.groups is not None:
            n_keep, size = self.groups
            removed = self.rows * d_in // size * (size - n_keep)
            return replace(self, spare=cubic_count(removed, 0, step, steps))
        return replace(self, kept=cubic_count(self.competitors(d_in), self.kept, step, steps))


@dataclass(frozen=True)
class ThresholdStep:
    """One step's choice of what stays.

    select: mask (rows, d_in) of gradient-step values' magnitudes.
    price:  penalty λ of every kept weight, broadcast over (rows, d_in); None where only the counts decide.
    """

    select: Callable[[Tensor], Tensor]
    price: Tensor | None = None

    def cost(self, keep: Tensor) -> float:
        """λ‖W‖₀ of a weight with this mask; 0 where only the counts decide."""
        return 0.0 if self.price is None else float((keep * self.price).double().sum())


ThresholdRule = Callable[[int, Tensor], ThresholdStep]
"""What cuts at a step (0, 1, ...), given the mask before it."""


def falling_counts(pattern: SparsityPattern, d_in: int, steps: int) -> ThresholdRule:
    """Exact counts that fall on the cubic schedule and come to the pattern at the last step."""
    return lambda step, _: ThresholdStep(pattern.on_the_way(d_in, step + 1, steps).select)


def same_pattern(pattern: SparsityPattern) -> ThresholdRule:
    """The pattern itself at every step (mAIHT, appendix D.3, for N:M)."""
    return lambda step, _: ThresholdStep(pattern.select)


class AdaptivePenalty:
    """λ ← λ(1 + (‖W‖₀ - s)/(d₁d₂)) before every step (mAIHT, section 2.4), a weight staying if it exceeds √(2αλ).

    λ begins at Q²/(2α), Q the 1 % quantile of |T|, so that 99 % would stay. One λ for a linear or, where
    weights compete within rows, one for each row.
    """

    def __init__(self, target: Tensor, pattern: SparsityPattern, alpha: float) -> None:
        groups = target.abs() if pattern.by_row else target.abs().view(1, -1)
        self._pattern, self._alpha, self._competitors = pattern, alpha, groups.shape[1]
        rank = max(1, round(0.01 * groups.shape[1]))
        self._price = groups.kthvalue(rank, dim=1, keepdim=True).values.square() / (2 * alpha)

    def __call__(self, step: int, keep: Tensor) -> ThresholdStep:
        """The cut of the next step; λ follows the mask before it."""
        kept = keep.sum(1, keepdim=True) if self._pattern.by_row else keep.sum().view(1, 1)
        excess = (kept - self._pattern.kept).to(self._price.dtype) / self._competitors
        self._price = self._price * (1 + excess)
        threshold = (2 * self._alpha * self._price).sqrt()
        return ThresholdStep(lambda scores: torch.gt(scores, threshold), self._price)
