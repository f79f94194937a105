"""One mask for the fused weights of query and key, learned by gradient descent on the attention matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import NotFiniteError, ParameterError
from stages.linalg.attention import Heads, errors_between, squared_error
from stages.linalg.masks import keep_largest, removed_count


@dataclass(frozen=True)
class FusedProblem:
    """A head without rotary embedding, its query and key weights in one: f = softmax(s X W Xᵀ + mask).

    weight: (d, d) W = W_Q W_Kᵀ, where queries are X W_Q and keys X W_K.
    inputs: (k, n, d) X of every calibration input, in the dtype and on the device of `weight`.
    mask:   added to the logits, (1, k or 1, n, n), 0 or very negative (`matrix.causal_mask`); None: all see all.
    scaling: s; the paper has 1, models 1/√d_head.
    """

    weight: Tensor
    inputs: Tensor
    mask: Tensor | None = None
    scaling: float = 1.0

    def __post_init__(self) -> None:
        shape, width = tuple(self.weight.shape), self.inputs.shape[-1]
        if self.inputs.dim() != 3 or shape != (width, width):
            raise ValueError(
                f"expected inputs (k, n, d) and a weight (d, d), got {tuple(self.inputs.shape)} and {shape}"
            )

    def heads(self, weight: Tensor) -> Heads:
        """Queries X W and keys X of the attention matrices with this (d, d) weight.

        Inputs stand where heads do, so that few pieces serve all of them: at least a row of each is in memory.
        """
        return Heads((self.inputs @ weight)[None], self.inputs[None], self.mask, self.scaling)

    def relative_error(self, weight: Tensor) -> float:
        """‖f̃ - f‖²/‖f‖² over all inputs, with this weight in place of W (Liang et al., Figure 2)."""
        found = errors_between(self.heads(weight), self.heads(self.weight))
        return float(found.error.sum() / found.energy.sum())


@dataclass(frozen=True)
class FusedSolution:
    """A mask for a fused weight.

    keep:   (d, d) bool, the largest scores.
    scores: (d, d) M as learned, of either sign.
    losses: L(M) before every step and after the last, `steps` + 1 of them.
    step:   η as used.
    tied:   weights removed although their score equals the lowest kept one: where not 0, their order decided.
    """

    keep: Tensor
    scores: Tensor
    losses: tuple[float, ...]
    step: float
    tied: int


@dataclass(frozen=True)
class MaskDescent:
    """Learn a real mask M for W by gradient descent, keep the weights with the largest M (Algorithm 1).

    Minimises from M = 1 (Definition 3.2, averaged as section 6.1 sweeps λ = λ̃/n)

        L(M) = 1/(2kn) Σ_j ‖f̃_j - f_j‖² + ½ λ ‖M‖²,   f̃_j = softmax(s X_j (M ∘ W) X_jᵀ + mask),

    whose gradient is W ∘ (s/(kn) Σ_j X_jᵀ p_j X_j) + λM (Theorem 5.3; p in Definition D.1), by

        V ← βV + ∇L(M),   M ← M - ηV.

    At M = 1 the first term of the gradient is exactly 0: the first step is λ's alone.

    Departs from the paper: p₁ = c ∘ f̃ as in Definition D.1 (line 13 prints c ∘ f); the data term is a mean over
    inputs and tokens, the penalty is not divided by k (line 16 does that); exactly the count asked for is kept
    (lines 20 to 22 keep M > τ, fewer where entries tie); logits have a scale and any mask. M is not held in
    [0, 1], as it is not in the listing.

    penalty:  λ, more than 0: without it nothing leaves M = 1.
    step:     ηλ, the paper's 0.1, less than 2(1 + β), from where the penalty alone makes M grow without end.
              `auto`: η = 1/`curvature`, with which and momentum 0 the loss never rises. It is some thousand times
              smaller, so that all of M is the same after a hundred steps in float32: docs/experiments/attention.md.
    steps:    T, at least 1.
    momentum: β, at least 0, less than 1.
    """

    penalty: float = 0.04
    step: float | Literal["auto"] = 0.1
    steps: int = 100
    momentum: float = 0.9

    paper: ClassVar[str] = "Liang et al. 2025, arXiv:2410.11261"

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ParameterError(f"penalty: expected more than 0, or nothing leaves M = 1, got {self.penalty}")
        if self.steps < 1:
            raise ParameterError(f"steps: expected at least 1, got {self.steps}")
        if not 0 <= self.momentum < 1:
            raise ParameterError(f"momentum: expected at least 0 and less than 1, got {self.momentum}")
        limit = 2 * (1 + self.momentum)
        if self.step != "auto" and not (isinstance(self.step, (int, float)) and 0 < self.step < limit):
            raise ParameterError(f"step: expected auto or between 0 and 2 (1 + momentum) = {limit:g}, got {self.step}")

    def __call__(self, problem: FusedProblem, sparsity: float) -> FusedSolution:
        """Raises NotFiniteError if the weight or an input is not finite."""
        if not 0 <= sparsity <= 1:
            raise ParameterError(f"sparsity: expected 0 to 1, got {sparsity}")
        dense = problem.heads(problem.weight)
        _check_finite(dense.query, dense.key)
        step = 1 / curvature(problem, self.penalty) if self.step == "auto" else self.step / self.penalty
        scores, velocity, losses = torch.ones_like(problem.weight), torch.zeros_like(problem.weight), []
        for _ in range(self.steps):
            loss, gradient = loss_and_gradient(problem, dense, scores, self.penalty)
            losses.append(loss)
            velocity.mul_(self.momentum).add_(gradient)
            scores.sub_(velocity, alpha=step)
        losses.append(loss_of(problem, dense, scores, self.penalty))
        _check_finite(scores)
        keep = keep_share(scores, sparsity)
        return FusedSolution(keep, scores, tuple(losses), step, _tied(scores, keep))


def keep_share(scores: Tensor, sparsity: float) -> Tensor:
    """The largest entries of a learned mask, all but exactly this share; M serves for any sparsity."""
    kept = scores.numel() - removed_count(scores.numel(), sparsity)
    return keep_largest(scores.flatten(), kept).view_as(scores)


def loss_of(problem: FusedProblem, dense: Heads, scores: Tensor, penalty: float) -> float:
    """L(M) of `MaskDescent`; `dense` is `problem.heads(problem.weight)`."""
    with torch.no_grad():
        error = squared_error(problem.heads(scores * problem.weight), dense)
    return float(error) / 2 / _tokens(problem) + _penalty(scores, penalty)


def loss_and_gradient(problem: FusedProblem, dense: Heads, scores: Tensor, penalty: float) -> tuple[float, Tensor]:
    """L(M) and its gradient (d, d), in one pass over the inputs; `dense` is `problem.heads(problem.weight)`."""
    with torch.enable_grad():
        leaf = scores.detach().requires_grad_()
        error = squared_error(problem.heads(leaf * problem.weight), dense) / (2 * _tokens(problem))
        (slope,) = torch.autograd.grad(error, leaf)
    return float(error.detach()) + _penalty(scores, penalty), slope.add_(scores, alpha=penalty)


def curvature(problem: FusedProblem, penalty: float) -> float:
    """No smaller than any eigenvalue of any Hessian of L; with steps of at most 1 / this the loss never rises.

    For one row, φ = ½‖q - f‖² with q = softmax(z) and J = diag q - qqᵀ: along v, with c = q - f and means under q,

        vᵀ ∇²φ v = ‖J v‖² + Σ_a q_a (c_a - c̄)(v_a - v̄)².

    J ≼ ½ I, as a variance is at most a quarter of the squared range; so ‖J v‖² ≤ ¼ ‖v‖² and
    Σ_a q_a (v_a - v̄)² ≤ ½ ‖v‖². And c_a - c̄ = (1 - q_a) c_a - Σ_{b≠a} q_b c_b is at most ½: c_a ≤ q_a makes
    the first term at most ¼, and Σ_{b≠a} q_b f_b - q_b² ≤ m - m², with m the largest of those q_b, the second.
    So ∇²φ ≼ ½ I (the largest eigenvalue found in random trials is 0.31), masked or not. The logits of X_j are
    linear in M with ‖s X_j (M ∘ W) X_jᵀ‖ ≤ s ‖X_j‖₂² max|W| ‖M‖, hence

        ∇²L ≼ λ + s²/(2kn) max|W|² Σ_j ‖X_j‖₂⁴.

    Theorem 5.4 has λ + 30 d n^(7/2) R⁶ with R ≥ ‖X‖, ‖W‖ for s = 1, k = 1 and no mean over n: it takes
    Frobenius norms of every factor. It bounds negative curvature, too, which descent does not need; with it,
    the half above becomes 1, because c̄ - c_a ≤ 2.
    """
    fourth = sum(float(torch.linalg.matrix_norm(one.double(), 2)) ** 4 for one in problem.inputs)
    largest = float(problem.weight.abs().max())
    return penalty + (problem.scaling * largest) ** 2 * fourth / (2 * _tokens(problem))


def _check_finite(*tensors: Tensor) -> None:
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise NotFiniteError("fused attention: expected finite weights, inputs and logits, look for NaN or infinity")


def _tied(scores: Tensor, keep: Tensor) -> int:
    return int((scores[~keep] == scores[keep].min()).sum()) if bool(keep.any()) else 0


def _tokens(problem: FusedProblem) -> int:
    return problem.inputs.shape[0] * problem.inputs.shape[1]


def _penalty(scores: Tensor, penalty: float) -> float:
    return penalty / 2 * float(scores.square().sum(dtype=torch.float64))
