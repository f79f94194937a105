"""ALPS pruning: ADMM whose penalty grows until the mask has settled, then conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.admm import admm_operator, admm_rhs, admm_update
from stages.linalg.refit import guarded_refit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution, masked_solution

PERIOD = 3
"""Steps between two updates of the penalty by how much of the mask has changed."""

GROWTH = ((0.1, 1.3), (0.005, 1.2), (0.0, 1.1))
"""Thresholds of the changed share of the mask, each with the factor that multiplies the penalty from there on."""


@dataclass(frozen=True)
class Alps:
    """ADMM with a growing penalty, then conjugate gradients (Meng et al. 2024, Algorithms 1 and 2).

    The steps are those of `admm`, with the mask chosen after each, in unit-diagonal coordinates as in the
    paper. Every third step counts the entries of the mask that have changed, s, of k kept ones, and
    multiplies the penalty by 1.3 if s ≥ 0.1 k, by 1.2 if s ≥ 0.005 k and by 1.1 otherwise. Every linear has
    a penalty of its own and stops by itself, at a look that finds s ≤ tolerance k.

    Departs from the paper, which has penalty = 0.1, ridge = 0.01, tolerance = 0, iterations = 300:
    - an inverse for every penalty, not one eigendecomposition for all, which is no faster;
    - the conjugate gradients begin at the best point between Z and the mask alone, without the
      preconditioner, which is the diagonal and so the identity here;
    - the public code's shrinking of a first penalty that changes nothing is left out.

    iterations:   most steps, at least 1.
    penalty:      ρ of the first steps, as a fraction of the unit diagonal, more than 0.
    tolerance:    changed share of the mask at which it counts as settled, at least 0.
    ridge:        added to the unit diagonal, at least 0.
    refine_steps: steps of conjugate gradients on the final mask; 0: Z as it is.
    """

    iterations: int = 300
    penalty: float = 0.1
    tolerance: float = 0.0003
    ridge: float = 0.1
    refine_steps: int = 10

    paper: ClassVar[str] = "Meng et al. 2024, arXiv:2406.07831"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[Literal["linear", "row"], ...]] = ("linear", "row")

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ParameterError(f"iterations: expected at least 1, got {self.iterations}")
        if not 0 < self.penalty < float("inf"):
            raise ParameterError(f"penalty: expected more than 0, got {self.penalty}")
        for name in ("tolerance", "ridge", "refine_steps"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ParameterError(f"{name}: expected at least 0, got {getattr(self, name)}")

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Mask and weights; raises NotPositiveDefiniteError if the Gram matrix with ridge and penalty is singular."""
        unit = unit_diagonal(problem.gram)
        target = (problem.target * unit.scale).contiguous()
        solved = []
        for i, part in enumerate(target.split(problem.rows)):
            own = budget if budget.kept is None else replace(budget, kept=(budget.kept[i],))
            solved.append(self._alternate(part, unit.gram, own))
        weight, keep = torch.cat([weight for weight, _ in solved]), torch.cat([keep for _, keep in solved])
        if self.refine_steps:
            weight = guarded_refit(target, unit.gram, keep, weight, self.refine_steps, self.ridge)
        # A row that loses nothing is at its minimum, which no rounding shall move.
        whole = keep.all(1, keepdim=True)
        return masked_solution(torch.where(whole, problem.target, weight / unit.scale), keep, self.ridge)

    def _alternate(self, target: Tensor, gram: Tensor, budget: Budget) -> tuple[Tensor, Tensor]:
        """Z (rows, d_in) and its mask for one linear, with a penalty and a stop of its own."""
        rows, last = (len(target),), self.penalty
        total, buffer, move = target.clone(), torch.empty_like(target), torch.empty_like(target)
        seen = keep = budget.select(torch.abs(total, out=buffer), rows)
        answer, ratio = admm_operator(gram, self.ridge, last), 1.0
        for step in range(1, self.iterations + 1):
            torch.mm(admm_rhs(target, total, keep, ratio, buffer), answer, out=move)
            admm_update(target, move, total, keep, 1.0, ratio)
            keep, ratio = budget.select(torch.abs(total, out=buffer), rows), 1.0
            if step % PERIOD == 0:
                changed = int((keep ^ seen).sum()) / max(1, int(keep.sum()))
                if changed <= self.tolerance:
                    break
                penalty, seen = last * penalty_growth(changed), keep
                answer, ratio, last = admm_operator(gram, self.ridge, penalty), last / penalty, penalty
        return total.mul_(keep), keep


def penalty_growth(changed: float) -> float:
    """Factor of the penalty after this share of the mask has changed; see GROWTH."""
    return next(factor for least, factor in GROWTH if changed >= least)
