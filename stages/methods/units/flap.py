"""FLAP: removes the heads and channels whose activations fluctuate least, and puts their mean into a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem, per_unit


@dataclass(frozen=True)
class Flap:
    """Scores the fluctuation of every input of o and down, standardised in each linear (An et al. 2023).

        metric `fluctuation` (the paper's WIFV):   Var(x_j) ‖w_j‖²;   `variance` (IFV):   Var(x_j)

    The scores of a linear's inputs are standardised (less their mean, over their deviation), which is what lets all
    blocks be ranked together (the paper's adaptive structure search), and a head counts as the mean of its inputs.
    The removed inputs' mean goes into the bias: b = W_p mean(x_p) (eq. 5).

    Departs from the public code: variances are over the tokens of the calibration text, not a running update of
    per-sequence ones.

    metric:      fluctuation | variance.
    standardise: whether scores are standardised in each linear.
    """

    metric: Literal["fluctuation", "variance"] = "fluctuation"
    standardise: bool = True
    paper: ClassVar[str] = "An et al. 2023, Fluctuation-based Adaptive Structured Pruning for LLMs"
    needs: ClassVar[frozenset[Need]] = frozenset()
    allocation: ClassVar[Allocation] = "global"
    compensation: ClassVar[Compensation] = "bias"

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,): the mean of a unit's inputs' scores."""
        fluctuation = (problem.gram.diagonal() - problem.mean.square()).clamp(min=0)
        if self.metric == "fluctuation":
            fluctuation = fluctuation * problem.dense.square().sum(0)
        if self.standardise:
            fluctuation = (fluctuation - fluctuation.mean()) / fluctuation.std().clamp(min=1e-30)
        return per_unit(fluctuation, problem.columns)
