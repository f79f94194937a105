"""Monotone accelerated iterative hard thresholding (MAIHT): gradient steps with momentum, each followed by a cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from stages.linalg.sparse_fit import Recipe, sparse_fit
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution, masked_solution


@dataclass(frozen=True)
class MonotoneAcceleratedIht:
    """Gradient steps with momentum, each followed by a cut, then a refit of what stayed (Wen et al. 2025, eq. 4).

    Minimises ½‖X(W - T)‖² + μ/2‖W - T‖² at a given count, X scaled to unit columns (section 4.1, eq. 5),
    by Algorithm 1. The step from the momentum point is taken if its objective is not above that of the
    plain step, so that the objective never rises while the count stays.

    schedule `paper`: λ adapts to the count as printed, then one projection to the exact count, for which
    the largest of the last gradient step fill up where the printed algorithm keeps too few; N:M at every
    step (appendix D.3).
    schedule `projected` departs from it: every step keeps an exact count, which falls to the budget's on
    a cubic schedule and the plain step is compared by its upper bound first, which mostly spares a product.

    iterations:   steps that cut, at least 1; the paper takes 50.
    mu:           μ, a fraction of the scaled Gram matrix's diagonal, at least 0.
    refine:       `cg` conjugate gradients, never worse than the mask alone; `gradient` the paper's gradient
                  steps; `none`.
    refine_steps: steps of either; the paper takes 30 gradient steps.
    """

    schedule: Literal["projected", "paper"] = "projected"
    iterations: int = 40
    mu: float = 0.1
    refine: Literal["cg", "gradient", "none"] = "cg"
    refine_steps: int = 10

    paper: ClassVar[str] = "Wen, Zuo, Pan 2025, ICML (PMLR 267)"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[str, ...]] = ("linear", "row")
    idle: ClassVar[dict[str, tuple[str, tuple[object, ...]]]] = {"refine_steps": ("refine", ("none",))}

    def __post_init__(self) -> None:
        self._recipe()

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Mask and weights; dead inputs and singular Gram matrices are allowed, since nothing is inverted."""
        patterns = budget.patterns(problem.rows, problem.target.shape[1])
        fit = sparse_fit(problem.target, problem.gram, patterns, self._recipe(), momentum=True)
        return masked_solution(fit.weight, fit.keep)

    def _recipe(self) -> Recipe:
        return Recipe(self.schedule, self.iterations, self.mu, self.refine, self.refine_steps)
