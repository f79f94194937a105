"""Wanda pruning: scores weights by magnitude times the norm of their input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from stages.errors import ParameterError
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution, masked_solution


@dataclass(frozen=True)
class Wanda:
    """Keeps the weights with the largest |w_ij| ‖x_j‖^p, compared within each output row (Sun et al. 2023, eq. 1).

    Departs from the paper: the norm is a mean over tokens, which orders the weights alike, and its
    power is a setting.

    activation_power: p, finite and at least 0; 1 is the paper's, 0 is magnitude within rows.
    """

    activation_power: float = 1.0

    paper: ClassVar[str] = "Sun et al. 2023, arXiv:2306.11695"
    refits: ClassVar[bool] = False
    scopes: ClassVar[tuple[str, ...]] = ("row", "linear")

    def __post_init__(self) -> None:
        if not 0 <= self.activation_power < math.inf:
            raise ParameterError(
                f"activation_power: expected a finite number of at least 0, got {self.activation_power}"
            )

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """The mask of the largest scores of each row or linear, and these weights as they were."""
        norms = problem.gram.diagonal().clamp(min=0).sqrt()
        keep = budget.select(problem.target.abs() * norms**self.activation_power, problem.rows)
        return masked_solution(problem.target, keep)
