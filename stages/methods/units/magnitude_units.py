"""Magnitude pruning of heads and channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem


@dataclass(frozen=True)
class MagnitudeUnits:
    """Keeps the units whose weights, in all linears they are a part of, have the largest mean square.

    After Li et al. 2017, section 3, who rank filters by Σ|w|. Departs from it: the mean square, so that heads and
    channels of different widths compare; no retraining.
    """

    paper: ClassVar[str] = "Li et al. 2017, Pruning Filters for Efficient ConvNets"
    needs: ClassVar[frozenset[Need]] = frozenset({"coupled"})
    allocation: ClassVar[Allocation] = "uniform"
    compensation: ClassVar[Compensation] = "none"

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,): mean of w²; raises ValueError without the problem's coupled weights."""
        if problem.coupled is None:
            raise ValueError("magnitude_units needs the coupled weights of its units")
        return problem.coupled.square().mean(1)
