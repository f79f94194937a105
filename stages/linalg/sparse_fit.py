"""Sparse least squares by iterative hard thresholding: scaling, schedule, projection, refinement (IHT and mAIHT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.hard_threshold import Iterate, IterationRecord, Quadratic, descend
from stages.linalg.refit import guarded_refit
from stages.linalg.schedule import AdaptivePenalty, SparsityPattern, ThresholdRule, falling_counts, same_pattern
from stages.linalg.spectral import largest_eigenvalue
from stages.linalg.unit_diagonal import unit_diagonal

STEP = 0.95
"""α‖A‖₂ (mAIHT, section 4.1)."""


@dataclass(frozen=True)
class Recipe:
    """Settings that `iht` and `maiht` share (documented there): schedule, iterations, ridge and refinement."""

    schedule: Literal["projected", "paper"]
    iterations: int
    mu: float
    refine: Literal["cg", "gradient", "none"]
    refine_steps: int

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ParameterError(f"iterations: expected at least 1, got {self.iterations}")
        if not 0 <= self.mu < float("inf"):
            raise ParameterError(f"mu: expected at least 0, got {self.mu}")
        if self.refine_steps < 0:
            raise ParameterError(f"refine_steps: expected at least 0, got {self.refine_steps}")


class SparseFit(NamedTuple):
    """weight, keep: (d_out, d_in); traces: the iterations of each linear."""

    weight: Tensor
    keep: Tensor
    traces: tuple[tuple[IterationRecord, ...], ...]


def sparse_fit(
    target: Tensor, gram: Tensor, patterns: tuple[SparsityPattern, ...], recipe: Recipe, momentum: bool
) -> SparseFit:
    """Fit linears that share an input, stacked along d_out, each to its sparsity pattern.

    target: (d_out, d_in) T; gram: (d_in, d_in). In unit-diagonal coordinates, with A = G + mu I. The
    linears share A and its norm; beyond that they are independent and are fitted one
    after the other, which keeps their arrays in the cache.
    """
    unit = unit_diagonal(gram)
    ridged = unit.gram.clone()
    ridged.diagonal().add_(recipe.mu)
    alpha = STEP / largest_eigenvalue(ridged)
    weights, masks, traces = [], [], []
    for pattern, wanted in zip(patterns, target.split([pattern.rows for pattern in patterns]), strict=True):
        quadratic = Quadratic((wanted * unit.scale).contiguous(), ridged, alpha)
        point, trace = descend(
            quadratic, _rule(quadratic, pattern, recipe), recipe.iterations, momentum, recipe.schedule == "projected"
        )
        keep = point.keep if recipe.schedule == "projected" else _projected(quadratic.target, point, pattern)
        change = _refined(quadratic, unit.gram, point, keep, recipe) - quadratic.target
        weights.append(torch.where(keep, wanted + change / unit.scale, 0.0))
        masks.append(keep)
        traces.append(tuple(trace))
    return SparseFit(torch.cat(weights), torch.cat(masks), tuple(traces))


def _rule(quadratic: Quadratic, pattern: SparsityPattern, recipe: Recipe) -> ThresholdRule:
    if recipe.schedule == "projected":
        return falling_counts(pattern, quadratic.target.shape[1], recipe.iterations)
    if pattern.groups is not None:
        return same_pattern(pattern)
    return AdaptivePenalty(quadratic.target, pattern, quadratic.alpha)


def _projected(target: Tensor, point: Iterate, pattern: SparsityPattern) -> Tensor:
    """Mask of the largest |W|, exactly as many as are to stay (Algorithm 1, line 7).

    Departs from the paper, whose result has fewer where fewer survived: the largest magnitudes of the
    last gradient step then fill up, every one of them after all that survived.
    """
    ahead, weight = point.ahead.abs(), (target + point.offset).abs().masked_fill(~point.keep, 0.0)
    survived = weight > 0
    # The largest of the others becomes half the smallest survivor, so that they rank below every survivor.
    least = float(weight[survived].min()) if bool(survived.any()) else 1.0
    most = float(ahead.masked_fill(survived, 0.0).max())
    factor = least / (2 * most) if most > 0 else 0.0
    return pattern.select(torch.where(survived, weight, factor * ahead))


def _refined(quadratic: Quadratic, gram: Tensor, point: Iterate, keep: Tensor, recipe: Recipe) -> Tensor:
    """The weight on the support, in unit-diagonal coordinates; `gram` without the ridge."""
    weight = torch.where(keep, quadratic.target + point.offset, 0.0)
    if recipe.refine == "none" or recipe.refine_steps == 0:
        return weight
    weight = torch.where(keep, point.ahead, 0.0)
    if recipe.refine == "cg":
        return guarded_refit(quadratic.target, gram, keep, weight, recipe.refine_steps, recipe.mu)
    for _ in range(recipe.refine_steps - 1):
        gradient = (weight - quadratic.target) @ quadratic.gram
        weight = torch.where(keep, weight - quadratic.alpha * gradient, 0.0)
    return weight
