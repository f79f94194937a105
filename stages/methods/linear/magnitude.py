"""Magnitude pruning: removes the smallest weights, whatever their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution, masked_solution


@dataclass(frozen=True)
class Magnitude:
    """Keeps the weights with the largest |w| (Han et al. 2015, "Learning both weights and connections", section 3).

    Scope `model` ranks the weights of all linears together; the counts that follow from it come in the budget. Departs
    from the paper: no training between or after.
    """

    paper: ClassVar[str] = "Han et al. 2015, arXiv:1506.02626"
    refits: ClassVar[bool] = False
    scopes: ClassVar[tuple[str, ...]] = ("linear", "row", "model")

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """The mask of the largest weights of each row or linear, and these weights as they were."""
        keep = budget.select(problem.target.abs(), problem.rows)
        return masked_solution(problem.target, keep)
