"""Iterative hard thresholding, plain and accelerated: gradient step, cut, and so on (mAIHT, eq. 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from stages.linalg.schedule import ThresholdRule, ThresholdStep

SAMPLED = 16
"""One row in so many is looked at where a threshold need not be exact."""


@dataclass(frozen=True)
class Quadratic:
    """f(W) = ½ tr[(W - T) A (W - T)ᵀ], and the length α of gradient steps on it.

    target: (d_out, d_in) T.
    gram:   (d_in, d_in) A, the ridge included.
    alpha:  less than 1/‖A‖₂.
    """

    target: Tensor
    gram: Tensor
    alpha: float


class Point(NamedTuple):
    """A weight W as the iteration keeps it.

    offset: (d_out, d_in) W - T;     ahead: (d_out, d_in) W - α∇f(W).
    keep:   (d_out, d_in) what was not cut;     kept: how many are.
    loss:   f(W);                               square: ‖∇f(W)‖².
    """

    offset: Tensor
    ahead: Tensor
    keep: Tensor
    kept: int
    loss: float
    square: float


@dataclass(frozen=True)
class Step:
    """What an iteration did: objective f(W) + λ‖W‖₀ after it, weights kept, the branch taken, λ (mean over rows)."""

    objective: float
    kept: int
    branch: Literal["momentum", "plain"]
    penalty: float | None


def descend(
    quadratic: Quadratic, rule: ThresholdRule, iterations: int, momentum: bool, bound: bool
) -> tuple[Point, list[Step]]:
    """Minimise f(W) + λ‖W‖₀, or f(W) at a count that falls, from W = T on (mAIHT, Algorithm 1, lines 2 to 6).

    With V ← cut(W - α∇f(W)) and, where there is momentum, Z ← cut(Y - α∇f(Y)),

        Y = W + t'/t (Z - W) + (t' - 1)/t (W - W'),   W ← Z if L(Z) ≤ L(V) else V,   t ← (√(4t² + 1) + 1)/2.

    Y - α∇f(Y) is affine in Y: it comes from the points ahead of Z, W and W', without a product. So an
    iteration takes a product with A for Z and one for V. Without momentum only V remains (eq. 3).

    bound: for a rule of counts alone, accept Z already if f(Z) is not above f(W) + <V - W, ∇f(W)> +
    ‖V - W‖²/2α. That is at least f(V) and, once the count has come to stay, at most f(W), which is all that
    descent needs; most iterations then take one product.
    """
    start = torch.zeros_like(quadratic.target)
    point = Point(start, quadratic.target, torch.ones_like(start, dtype=torch.bool), start.numel(), 0.0, 0.0)
    before = probe = point
    last, now, trace = 0.0, 1.0, []
    for number in range(iterations):
        cut = rule(number, point.keep)
        if momentum:
            values, scores = _extrapolated(point, probe, before, last / now, (last - 1) / now)
            probe = _settled(quadratic, values, cut.select(scores))
        accepted = momentum and bound and _within_bound(quadratic, point, probe, cut)
        following = probe
        if not accepted:
            following = _settled(quadratic, point.ahead, cut.select(point.ahead.abs()))
            accepted = momentum and _objective(probe, cut) <= _objective(following, cut)
            following = probe if accepted else following
        before, point = point, following
        last, now = now, ((4 * now * now + 1) ** 0.5 + 1) / 2
        trace.append(_step(point, cut, accepted))
    return point, trace


def _objective(point: Point, cut: ThresholdStep) -> float:
    return point.loss + cut.cost(point.keep)


def _within_bound(quadratic: Quadratic, point: Point, probe: Point, cut: ThresholdStep) -> bool:
    """f(Z) ≤ f(W) + <V - W, ∇f(W)> + ‖V - W‖²/2α, from what V drops of the values ahead of W.

    Whatever drops m of the values s drops m τ² - Σ max(τ² - s², 0) at least, for any τ. With about the
    threshold of Z this settles most cases, and V need not even be selected.
    """
    needed = 2 * quadratic.alpha * (probe.loss - point.loss + quadratic.alpha / 2 * point.square)
    threshold = _least_kept(quadratic, probe)
    removed = probe.keep.numel() - probe.kept
    if needed <= removed * threshold**2 - _shortfall(point.ahead, threshold):
        return True
    return needed <= _dropped_square(point.ahead, cut.select(point.ahead.abs()))


def _least_kept(quadratic: Quadratic, point: Point) -> float:
    """The smallest magnitude kept in every sixteenth row; 0 where nothing is."""
    keep = point.keep[::SAMPLED]
    values = (quadratic.target[::SAMPLED] + point.offset[::SAMPLED]).abs()
    return float(values[keep].min()) if bool(keep.any()) else 0.0


def _step(point: Point, cut: ThresholdStep, accepted: bool) -> Step:
    penalty = None if cut.price is None else float(cut.price.mean())
    return Step(_objective(point, cut), point.kept, "momentum" if accepted else "plain", penalty)


def _extrapolated(point: Point, probe: Point, before: Point, toward: float, beyond: float) -> tuple[Tensor, Tensor]:
    """Y - α∇f(Y) and its magnitudes."""
    if point.ahead.device.type != "cpu":
        values = point.ahead + toward * (probe.ahead - point.ahead) + beyond * (point.ahead - before.ahead)
        return values, values.abs()
    from stages.linalg.kernels.threshold_cpu import extrapolate

    here, there, past = point.ahead.numpy(), probe.ahead.numpy(), before.ahead.numpy()
    found = extrapolate(here, there, past, toward, beyond, torch.get_num_threads())
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def _settled(quadratic: Quadratic, values: Tensor, keep: Tensor) -> Point:
    """The point keep ⊙ values; one product."""
    target, alpha = quadratic.target, quadratic.alpha
    if values.device.type != "cpu":
        return settled_plain(quadratic, values, keep)
    from stages.linalg.kernels.threshold_cpu import gradient_step, offset_of

    threads, goal = torch.get_num_threads(), target.numpy()
    offset = offset_of(values.numpy(), keep.numpy(), goal, threads)
    ahead = torch.from_numpy(offset) @ quadratic.gram
    inner, square = gradient_step(offset, ahead.numpy(), goal, alpha, threads)
    loss = float(inner.sum()) / 2
    return Point(torch.from_numpy(offset), ahead, keep, int(keep.count_nonzero()), loss, float(square.sum()))


def settled_plain(quadratic: Quadratic, values: Tensor, keep: Tensor) -> Point:
    """The point keep ⊙ values on any device: what the fused passes do, in plain tensor operations."""
    offset = torch.where(keep, values, 0.0) - quadratic.target
    gradient = offset @ quadratic.gram
    loss = float(torch.linalg.vecdot(offset, gradient).double().sum()) / 2
    square = float(gradient.square().sum(1).double().sum())
    ahead = quadratic.target + (offset - quadratic.alpha * gradient)
    return Point(offset, ahead, keep, int(keep.count_nonzero()), loss, square)


def _dropped_square(values: Tensor, keep: Tensor) -> float:
    if values.device.type != "cpu":
        return float(values.masked_fill(keep, 0.0).square().sum(1).double().sum())
    from stages.linalg.kernels.threshold_cpu import dropped_square

    return float(dropped_square(values.numpy(), keep.numpy(), torch.get_num_threads()).sum())


def _shortfall(values: Tensor, threshold: float) -> float:
    """Σ max(threshold² - values², 0)."""
    if values.device.type != "cpu":
        return float((threshold**2 - values.square()).clamp(min=0).sum(1).double().sum())
    from stages.linalg.kernels.threshold_cpu import shortfall

    return float(shortfall(values.numpy(), threshold, torch.get_num_threads()).sum())
