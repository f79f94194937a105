"""Wanda's score for heads and channels (Wanda-sp)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem, per_unit


@dataclass(frozen=True)
class WandaUnits:
    """Keeps the inputs of o and down with the largest ‖x_j‖ ‖w_j‖; a head counts as the mean of its inputs.

    What An et al. 2023 (FLAP, section 4.1) call Wanda-sp: Wanda's |w| ‖x‖ for columns of a linear, ranked in each
    block by itself. With the square of both, the score is the error of the outputs when inputs were uncorrelated.
    """

    paper: ClassVar[str] = "Sun et al. 2023, A Simple and Effective Pruning Approach for LLMs; units as An et al. 2023"
    needs: ClassVar[frozenset[Need]] = frozenset()
    allocation: ClassVar[Allocation] = "uniform"
    compensation: ClassVar[Compensation] = "none"

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,): mean over a unit's inputs of (G_jj ‖w_j‖²)^½."""
        energy = problem.gram.diagonal() * problem.dense.square().sum(0)
        return per_unit(energy.sqrt(), problem.columns)
