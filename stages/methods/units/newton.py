"""Numerical pruning: scores units by the relaxed mask of a linear's inputs that changes its outputs least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.linalg.box_qp import box_minimum
from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem, per_unit


@dataclass(frozen=True)
class Newton:
    """Scores every input of o or down by the mask z that solves (Shen et al. 2025, eqs. 2 and 3, Algorithm 1)

        min ½ Σ_i ‖X(w_i - z ∘ w_i)‖² = ½ (1 - z)ᵀ H (1 - z),   H = (WᵀW) ∘ G,   Σ z = (1 - removed) D,

    and every unit by the mean of its inputs' scores.

    form `closed` solves it exactly: z = 1 - c H⁻¹e with c = removed · D / (eᵀH⁻¹e), one Cholesky factor. `penalty` is
    the paper's: ½ λ (eᵀz - r)² in place of the constraint, `iterations` steps of Newton's method from z = 1; its
    Hessian does not depend on z, so that one step is as good as fifty, and z tends to the closed form as λ grows. `box`
    also keeps z in [0, 1], which the paper asks for and Algorithm 1 does not do.

    Departs from the paper: λ is relative to mean(diag H), H is damped, and G is a mean, not a sum: the score does not
    depend on the units of the activations. Around it, unless solve.units says otherwise, units are ranked by parameters
    instead of eq. 8 (`ranking: literal`), and compensation is damped by each input's own energy.
    Of the closed form the ranking by parameters does not depend on `removed`, and a change of the budget needs no new
    scores.

    removed:    fraction of the inputs that the relaxed mask takes away, in (0, 1).
    damping:    added to the diagonal of H, as a fraction of its mean.
    penalty:    λ of `penalty`, times mean(diag H); iterations: its steps.
    """

    form: Literal["closed", "penalty", "box"] = "closed"
    removed: float = 0.3
    damping: float = 0.01
    penalty: float = 1000.0
    iterations: int = 50
    paper: ClassVar[str] = "Shen et al. 2025, Numerical Pruning for Efficient Autoregressive Models"
    needs: ClassVar[frozenset[Need]] = frozenset()
    allocation: ClassVar[Allocation] = "global"
    compensation: ClassVar[Compensation] = "weights"
    idle: ClassVar[dict[str, tuple[str, tuple[object, ...]]]] = {
        "penalty": ("form", ("closed", "box")),
        "iterations": ("form", ("closed", "box")),
    }

    def __post_init__(self) -> None:
        if not 0 < self.removed < 1:
            raise ParameterError(f"removed: expected a fraction in (0, 1), got {self.removed:g}")
        if not 0 <= self.damping < float("inf"):
            raise ParameterError(f"damping: expected at least 0, got {self.damping:g}")
        if not 0 < self.penalty < float("inf"):
            raise ParameterError(f"penalty: expected more than 0, got {self.penalty:g}")
        if self.iterations < 1:
            raise ParameterError(f"iterations: expected at least 1, got {self.iterations}")

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,); raises NotPositiveDefiniteError if H has no factor."""
        return per_unit(self.mask(problem), problem.columns).to(problem.gram.dtype)

    def mask(self, problem: UnitProblem) -> Tensor:
        """The relaxed mask z (d_in,), float64; raises NotPositiveDefiniteError if H has no factor."""
        hessian = mask_hessian(problem.dense, problem.gram, self.damping)
        width = len(hessian)
        # A linear whose outputs are all zero loses nothing with its inputs: they go first.
        if not hessian.diagonal().any():
            return torch.zeros_like(hessian[0])
        if self.form == "box":
            return 1 - box_minimum(hessian, self.removed * width)
        if self.form == "penalty":
            return self._by_penalty(hessian)
        solved = torch.cholesky_solve(torch.ones_like(hessian[:, :1]), _factor(hessian)).squeeze(1)
        return 1 - self.removed * width / solved.sum() * solved

    def _by_penalty(self, hessian: Tensor) -> Tensor:
        """Algorithm 1: z ← z - (H + λ e eᵀ)⁻¹ (λ(eᵀz - r) e - H(1 - z))."""
        width = len(hessian)
        strength, kept = self.penalty * hessian.diagonal().mean(), (1 - self.removed) * width
        factor = _factor(hessian + strength)
        mask = torch.ones_like(hessian[0])
        for _ in range(self.iterations):
            slope = strength * (mask.sum() - kept) - hessian @ (1 - mask)
            mask = mask - torch.cholesky_solve(slope[:, None], factor).squeeze(1)
        return mask


def mask_hessian(dense: Tensor, gram: Tensor, damping: float) -> Tensor:
    """(WᵀW) ∘ G + damping · mean(diag) I, (d_in, d_in) float64: damped Hessian of the outputs' error in the mask."""
    weight = dense.double()
    hessian = (weight.T @ weight) * gram.double()
    hessian.diagonal().add_(damping * hessian.diagonal().mean())
    return hessian


def _factor(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor; raises NotPositiveDefiniteError."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0:
        raise NotPositiveDefiniteError(
            f"{len(matrix)} x {len(matrix)} Hessian of a mask is not positive definite: raise methods.newton.damping"
        )
    return factor
