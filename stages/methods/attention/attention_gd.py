"""Gradient descent on real-valued masks of W_Q and W_K that preserves the softmax attention matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.attention import squared_error
from stages.methods.attention.contract import AttentionInputs, AttentionProblem, batch_order
from stages.methods.linear.contract import Budget, LinearSolution, masked_solution


@dataclass(frozen=True)
class AttentionGd:
    """Masks by gradient descent on the attention matrix (Liang et al. 2025, Algorithm 1, equation 1).

    Minimises over real masks M_Q and M_K, which begin at 1,

        ½ mean ‖f̃ - f‖² + ½ λ (‖M_Q‖² + ‖M_K‖²),

    f̃ the attention matrices with M_Q ∘ W_Q and M_K ∘ W_K through the model's own path (norms, rotary embedding,
    grouped keys), f the dense model's; the mean is over sequences and queries, the sum over heads. By momentum,

        V ← momentum V + ∇,   M ← M - η V,

    the first step coming from λ alone, as at M = 1 the other gradient is 0. The weights whose score is largest are
    kept, an exact number of each linear, as they were.

    As printed, the score is M itself. It fails on real models: descent lifts M above where λ alone would have taken
    it, M₀, for weights that the loss misses, and lowers it for weights of which it would have less; both matter, and
    those that do not matter stay at M₀. So the reading that works, `moved`, keeps what descent moved,

        |W|^⅔ |M - M₀|^⅓,

    which is |W| |∂f|^⅓ for the gradient ∂f of the data with respect to the weight, summed on the way.

    Departs from the paper: the misprint of line 13 (see matrix.squared_error); exact counts instead of a
    threshold; the mean over sequences and queries, which section 6.1 does through λ; the score, unless it is `mask`;
    what is in a step, unless `batches` is 0.

    penalty:  λ, at least 0. step: η, more than 0. steps: at least 1. momentum: 0 to 1, which is excluded.
    score:    moved | mask: M, as printed | weight: |M ∘ W|.
    box:      whether M is brought back into [0, 1] after every step.
    batches:  how many batches of sequences a step sees; 0: all, as printed.
    batch:    sequences in a batch. seed: of their order.
    """

    penalty: float = 0.05
    step: float = 0.005
    steps: int = 30
    momentum: float = 0.9
    score: Literal["moved", "mask", "weight"] = "moved"
    box: bool = False
    batches: int = 1
    batch: int = 8
    seed: int = 0

    paper: ClassVar[str] = "Liang et al. 2025, arXiv:2410.11261"
    refits: ClassVar[bool] = False
    scopes: ClassVar[tuple[Literal["linear", "row"], ...]] = ("linear", "row")

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("batches", 0)):
            if getattr(self, name) < least:
                raise ParameterError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if not 0 < self.step < float("inf"):
            raise ParameterError(f"step: expected more than 0, got {self.step}")
        if not 0 <= self.penalty < float("inf"):
            raise ParameterError(f"penalty: expected at least 0, got {self.penalty}")
        if not 0 <= self.momentum < 1:
            raise ParameterError(f"momentum: expected 0 to 1, which is excluded, got {self.momentum}")

    def __call__(self, problem: AttentionProblem, budget: Budget) -> LinearSolution:
        """The weights that descent moved most (`score`), an exact number of each linear, with their dense values."""
        return masked_solution(problem.dense, budget.select(self._scores(problem), problem.linear.rows))

    def _scores(self, problem: AttentionProblem) -> Tensor:
        """Scores (d_q + d_k, d_in) of the weights from the learnt mask, by the setting `score`."""
        alone, moved = self.learnt_mask(problem)
        if self.score == "mask":
            return alone + moved
        if self.score == "weight":
            return ((alone + moved) * problem.dense).abs()
        return problem.dense.abs() ** (2 / 3) * moved.abs() ** (1 / 3)

    def learnt_mask(self, problem: AttentionProblem) -> tuple[float, Tensor]:
        """The final mask M as two parts: M₀, where λ alone takes every entry, and M - M₀ (d_q + d_k, d_in), q above k.

        The steps are linear in M but for the data's gradient, so that the difference is kept by itself: as part of
        M it would be lost in rounding.
        """
        alone, pull = 1.0, 0.0
        moved, velocity = torch.zeros_like(problem.dense), torch.zeros_like(problem.dense)
        together = self.batches or problem.fit.batches
        order = list(batch_order(problem.fit.batches, self.steps * together, self.seed))
        for step in range(self.steps):
            gradient = self._gradient(problem, alone + moved, order[step * together : (step + 1) * together])
            velocity.mul_(self.momentum).add_(gradient).add_(moved, alpha=self.penalty)
            pull = self.momentum * pull + self.penalty * alone
            moved.sub_(velocity, alpha=self.step)
            alone -= self.step * pull
            if self.box:
                moved = (alone + moved).clamp_(0.0, 1.0).sub_(alone)
        return alone, moved

    def _gradient(self, problem: AttentionProblem, mask: Tensor, batches: list[int]) -> Tensor:
        """Gradient of ½ mean ‖f̃ - f‖² over these batches with respect to the mask (d_q + d_k, d_in)."""
        total, queries = torch.zeros_like(mask), 0
        for batch in batches:
            gradient, seen = _data_gradient(problem.fit, batch, mask * problem.dense)
            total.add_(gradient)
            queries += seen
        return total.mul_(problem.dense).div_(2 * queries)


def _data_gradient(inputs: AttentionInputs, batch: int, weight: Tensor) -> tuple[Tensor, int]:
    """Gradient of a batch's ‖f̃ - f‖² with respect to the weight, and how many queries it has."""
    weight, dense = weight.requires_grad_(), inputs.dense(batch)
    (gradient,) = torch.autograd.grad(squared_error(inputs.pruned(batch, weight), dense), weight)
    return gradient, dense.query.shape[0] * dense.query.shape[2]
