"""Iterative hard thresholding, plain and with monotone momentum: gradient step, threshold, repeat.

The paper is Wen et al. 2025 (mAIHT, eq. 3 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stages.linalg.schedule import ThresholdRule, ThresholdStep

SAMPLED = 16
"""One row in this many is sampled where a threshold need not be exact."""


@dataclass(frozen=True)
class Quadratic:
    """The objective f(W) = ½ tr[(W - T) A (W - T)ᵀ] and the step length α of gradient steps on it.

    target: (d_out, d_in) T.
    gram:   (d_in, d_in) A, the ridge included.
    alpha:  less than 1/‖A‖₂.
    """

    target: Tensor
    gram: Tensor
    alpha: float


class Iterate(NamedTuple):
    """A weight W and what the iteration needs of it, so that one product with A serves value and gradient.

    offset: (d_out, d_in) W - T;     ahead: (d_out, d_in) W - α∇f(W).
    keep:   (d_out, d_in) bool, W's mask;       kept: how many it keeps.
    loss:   f(W);                               square: ‖∇f(W)‖².
    """

    offset: Tensor
    ahead: Tensor
    keep: Tensor
    kept: int
    loss: float
    square: float


@dataclass(frozen=True)
class IterationRecord:
    """One iteration: objective f(W) + λ‖W‖₀ after it, weights kept, the branch taken, λ (mean over rows)."""

    objective: float
    kept: int
    branch: Literal["momentum", "plain"]
    penalty: float | None


def descend(
    quadratic: Quadratic, rule: ThresholdRule, iterations: int, momentum: bool, bound: bool
) -> tuple[Iterate, list[IterationRecord]]:
    """Minimise f(W) + λ‖W‖₀, or f(W) at a count that falls, from W = T on (mAIHT, Algorithm 1, lines 2 to 6).

    With V ← threshold(W - α∇f(W)) and, where there is momentum, Z ← threshold(Y - α∇f(Y)),

        Y = W + t'/t (Z - W) + (t' - 1)/t (W - W'),   W ← Z if L(Z) ≤ L(V) else V,   t ← (√(4t² + 1) + 1)/2.

    Y - α∇f(Y) is affine in Y: it comes from the points ahead of Z, W and W', without a product. So an
    iteration takes a product with A for Z and one for V. Without momentum only V remains (eq. 3).

    bound: for a rule of counts alone, accept Z already if f(Z) is not above f(W) + <V - W, ∇f(W)> +
    ‖V - W‖²/2α. That is at least f(V) and, once the count has come to stay, at most f(W), which is all that
    descent needs; most iterations then take one product.
    """
    start = torch.zeros_like(quadratic.target)
    point = Iterate(start, quadratic.target, torch.ones_like(start, dtype=torch.bool), start.numel(), 0.0, 0.0)
    before = probe = point
    last, now, trace = 0.0, 1.0, []
    for number in range(iterations):
        threshold = rule(number, point.keep)
        if momentum:
            values, scores = _extrapolated(point, probe, before, last / now, (last - 1) / now)
            probe = _iterate_at(quadratic, values, threshold.select(scores))
        accepted = momentum and bound and _within_bound(quadratic, point, probe, threshold)
        following = probe
        if not accepted:
            following = _iterate_at(quadratic, point.ahead, threshold.select(point.ahead.abs()))
            accepted = momentum and _objective(probe, threshold) <= _objective(following, threshold)
            following = probe if accepted else following
        before, point = point, following
        last, now = now, ((4 * now * now + 1) ** 0.5 + 1) / 2
        trace.append(_record(point, threshold, accepted))
    return point, trace


def _objective(point: Iterate, threshold: ThresholdStep) -> float:
    """L(W) = f(W) + λ‖W‖₀."""
    return point.loss + threshold.cost(point.keep)


def _within_bound(quadratic: Quadratic, point: Iterate, probe: Iterate, threshold: ThresholdStep) -> bool:
    """Whether f(Z) ≤ f(W) + <V - W, ∇f(W)> + ‖V - W‖²/2α, from what V drops of the values ahead of W.

    Whatever drops m of the values s drops m τ² - Σ max(τ² - s², 0) at least, for any τ. With about the
    threshold of Z this settles most cases, and V need not even be selected.
    """
    # <V - W, ∇f> + ‖V - W‖²/2α = (‖V - (W - α∇f)‖² - α²‖∇f‖²)/2α, and V differs from W - α∇f by what it drops: so the
    # bound is 2α (f(Z) - f(W)) + α²‖∇f‖² ≤ ‖what V drops‖².
    needed = 2 * quadratic.alpha * (probe.loss - point.loss + quadratic.alpha / 2 * point.square)
    level = _smallest_kept(quadratic, probe)
    removed = probe.keep.numel() - probe.kept
    if needed <= removed * level**2 - _threshold_gap(point.ahead, level):
        return True
    return needed <= _dropped_square(point.ahead, threshold.select(point.ahead.abs()))


def _smallest_kept(quadratic: Quadratic, point: Iterate) -> float:
    """The smallest magnitude kept in sampled rows; 0 where nothing is kept."""
    keep = point.keep[::SAMPLED]
    values = (quadratic.target[::SAMPLED] + point.offset[::SAMPLED]).abs()
    return float(values[keep].min()) if bool(keep.any()) else 0.0


def _record(point: Iterate, threshold: ThresholdStep, accepted: bool) -> IterationRecord:
    penalty = None if threshold.penalty is None else float(threshold.penalty.mean())
    return IterationRecord(_objective(point, threshold), point.kept, "momentum" if accepted else "plain", penalty)


def _extrapolated(
    point: Iterate, probe: Iterate, before: Iterate, toward: float, beyond: float
) -> tuple[Tensor, Tensor]:
    """Y - α∇f(Y) and its magnitudes, from the values ahead of W, Z and the last W."""
    if point.ahead.device.type != "cpu":
        plain = point.ahead + toward * (probe.ahead - point.ahead) + beyond * (point.ahead - before.ahead)
        return plain, plain.abs()
    from stages.linalg.kernels.threshold_cpu import extrapolate

    here, there, past = point.ahead.numpy(), probe.ahead.numpy(), before.ahead.numpy()
    values, scores = extrapolate(here, there, past, toward, beyond, torch.get_num_threads())
    return torch.from_numpy(values), torch.from_numpy(scores)


def _iterate_at(quadratic: Quadratic, values: Tensor, keep: Tensor) -> Iterate:
    """The iterate keep ⊙ values, at the cost of one product with A."""
    target, alpha = quadratic.target, quadratic.alpha
    if values.device.type != "cpu":
        return iterate_at_plain(quadratic, values, keep)
    from stages.linalg.kernels.threshold_cpu import gradient_step, offset_of

    threads, goal = torch.get_num_threads(), target.numpy()
    offset = offset_of(values.numpy(), keep.numpy(), goal, threads)
    ahead = torch.from_numpy(offset) @ quadratic.gram
    inner, square = gradient_step(offset, ahead.numpy(), goal, alpha, threads)
    loss = float(inner.sum()) / 2
    return Iterate(torch.from_numpy(offset), ahead, keep, int(keep.count_nonzero()), loss, float(square.sum()))


def iterate_at_plain(quadratic: Quadratic, values: Tensor, keep: Tensor) -> Iterate:
    """`_iterate_at` in plain tensor operations on any device."""
    offset = torch.where(keep, values, 0.0) - quadratic.target
    gradient = offset @ quadratic.gram
    loss = float(torch.linalg.vecdot(offset, gradient).double().sum()) / 2
    square = float(gradient.square().sum(1).double().sum())
    ahead = quadratic.target + (offset - quadratic.alpha * gradient)
    return Iterate(offset, ahead, keep, int(keep.count_nonzero()), loss, square)


def _dropped_square(values: Tensor, keep: Tensor) -> float:
    """Σ values² over what is not kept."""
    if values.device.type != "cpu":
        return float(values.masked_fill(keep, 0.0).square().sum(1).double().sum())
    from stages.linalg.kernels.threshold_cpu import dropped_square

    return float(dropped_square(values.numpy(), keep.numpy(), torch.get_num_threads()).sum())


def _threshold_gap(values: Tensor, threshold: float) -> float:
    """Σ max(threshold² - values², 0)."""
    if values.device.type != "cpu":
        return float((threshold**2 - values.square()).clamp(min=0).sum(1).double().sum())
    from stages.linalg.kernels.threshold_cpu import threshold_gap

    return float(threshold_gap(values.numpy(), threshold, torch.get_num_threads()).sum())
