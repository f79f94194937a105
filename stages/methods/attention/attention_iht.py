"""Iterative hard thresholding of q and k toward the attention matrix: kept weights and mask both move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.attention import errors_between, squared_error
from stages.linalg.unit_diagonal import UnitGram, unit_diagonal
from stages.methods import registry
from stages.methods.attention.contract import AttentionProblem, attention_error, batch_order
from stages.methods.linear.contract import Budget, LinearSolution, masked_solution

SLOW, FAST = 0.9, 0.95
"""Decay of the running means of gradients and of their squares."""

LOOK_EVERY = 10
"""Steps after which the error on held-out sequences is measured."""


@dataclass(frozen=True)
class AttentionIht:
    """W_Q and W_K with an exact number of zeros, such that the softmax attention matrix survives.

    Minimises, over weights W of q and k stacked with the exact number of zeros,

        ‖f̃ - f‖² / ‖f‖² + λ tr[(W - T) G (W - T)ᵀ] / tr[T G Tᵀ],

    f the dense model's attention matrices, f̃ those of W, T the layer-wise target, G the Gram matrix. It begins with
    a layer-wise method's solution. Each step takes the gradient on one batch of sequences, for removed weights too,
    in unit-diagonal coordinates, moves by Adam's rule with a rate that rises over `warm` steps and then falls as a
    cosine, and keeps the largest. Removed weights go on collecting their steps beside the mask, so that they can
    come back; in the last third the mask stays. Every tenth step the error on held-out sequences is looked at, and
    the best of these weights, the start included, is the result: on those it never ends worse than it began.

    The loss is that of Liang et al. 2025 (Definition 3.2); that kept weights move, the start, the second term and
    the held-out choice are ours.

    start:   the layer-wise method that gives mask and weights to begin with, with its own defaults.
    steps:   of descent, at least 1.
    rate:    the largest step of a weight, as a share of the root mean square of its linear's dense weights.
    warm:    steps over which the rate rises.
    penalty: λ, at least 0.
    moves:   whether the mask may change.
    batch:   sequences a step.
    seed:    of the order of batches.
    """

    start: str = "admm"
    steps: int = 60
    rate: float = 0.02
    warm: int = 15
    penalty: float = 1.0
    moves: bool = True
    batch: int = 8
    seed: int = 0

    paper: ClassVar[str] = "Secateur; loss of Liang et al. 2025, arXiv:2410.11261"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[Literal["linear", "row"], ...]] = ("linear", "row")

    def __post_init__(self) -> None:
        if registry.find(self.start).family != "linear":
            raise ParameterError(f"start: expected a layer-wise method, got {self.start}")
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("warm", "penalty"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ParameterError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if not 0 < self.rate < float("inf"):
            raise ParameterError(f"rate: expected more than 0, got {self.rate}")

    def __call__(self, problem: AttentionProblem, budget: Budget) -> LinearSolution:
        """The best weights on held-out sequences; raises what the method that it starts from raises."""
        begin = registry.load(self.start)(problem.linear, budget)
        descent = _Descent(problem, budget, begin, unit_diagonal(problem.linear.gram))
        best, least = begin, attention_error(problem.held, begin.weight).total
        for step, batch in enumerate(batch_order(problem.fit.batches, self.steps, self.seed)):
            rate, moves = self.rate * self.rate_share(step), self.moves and step < self.steps * 2 / 3
            descent.step(batch, rate, self.penalty, moves)
            if (step + 1) % LOOK_EVERY == 0 or step + 1 == self.steps:
                solution = masked_solution(descent.weight(), descent.keep, begin.damping, begin.attempts)
                error = attention_error(problem.held, solution.weight).total
                if error < least:
                    best, least = solution, error
        return best

    def rate_share(self, step: int) -> float:
        """Share of `rate` at a step: rising over `warm` steps, times a cosine that falls to 0 over all."""
        return min(1.0, (step + 1) / max(self.warm, 1)) * 0.5 * (1 + math.cos(math.pi * step / self.steps))


class _Descent:
    """State of the descent in unit-diagonal coordinates; `latent` collects the steps of removed weights too."""

    def __init__(self, problem: AttentionProblem, budget: Budget, begin: LinearSolution, unit: UnitGram) -> None:
        self._problem, self._budget, self._unit, self._rows = problem, budget, unit, problem.linear.rows
        self._target = problem.linear.target * unit.scale
        self._energy = float(((self._target @ unit.gram) * self._target).sum())
        sizes = [part.square().mean().sqrt().expand(len(part), 1) for part in self._target.split(self._rows)]
        self._size = torch.cat(sizes)
        first = problem.fit.dense(0)
        self._matrix_energy = float(errors_between(first, first).energy.sum()) / len(first.query)
        self.latent, self.keep = begin.weight * unit.scale, begin.keep.clone()
        self._mean, self._square = torch.zeros_like(self.latent), torch.zeros_like(self.latent)
        self._steps = 0

    def weight(self) -> Tensor:
        """(d_q + d_k, d_in), zero where nothing is kept, in the model's own coordinates."""
        return self.latent * self.keep / self._unit.scale

    def step(self, batch: int, rate: float, penalty: float, moves: bool) -> None:
        """One step of Adam on one batch; moves: whether the mask is chosen anew after it."""
        gradient = self._gradient(batch, penalty)
        if not moves:
            self.latent.mul_(self.keep)
            gradient.mul_(self.keep)
        self._steps += 1
        self._mean.lerp_(gradient, 1 - SLOW)
        self._square.lerp_(gradient.square(), 1 - FAST)
        # Adam's rule, corrected for its start: the mean step over the root mean square of the gradients.
        spread = (self._square / (1 - FAST**self._steps)).sqrt_().add_(torch.finfo(gradient.dtype).tiny)
        self.latent.addcdiv_(self._mean * self._size, spread, value=-rate / (1 - SLOW**self._steps))
        if moves:
            self.keep = self._budget.select(self.latent.abs(), self._rows)
        else:
            self.latent.mul_(self.keep)

    def _gradient(self, batch: int, penalty: float) -> Tensor:
        """Gradient of a batch's loss, (d_q + d_k, d_in), removed weights included, in unit-diagonal coordinates."""
        inputs, weight = self._problem.fit, self.weight().requires_grad_()
        dense = inputs.dense(batch)
        error = squared_error(inputs.pruned(batch, weight), dense)
        (gradient,) = torch.autograd.grad(error / (self._matrix_energy * len(dense.query)), weight)
        gradient = gradient / self._unit.scale
        if penalty and self._energy:
            away = self.latent * self.keep - self._target
            gradient.addmm_(away, self._unit.gram, alpha=2 * penalty / self._energy)
        return gradient
