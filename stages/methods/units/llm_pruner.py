"""LLM-Pruner: scores heads and channels by the Taylor expansion of the loss in their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from stages.linalg.salience import SECOND
from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem

REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda terms: terms.sum(1),
    "product": lambda terms: terms.prod(1),
    "max": lambda terms: terms.amax(1),
    "last": lambda terms: terms[:, -1],
}
"""How the salience (units, linears) of a unit's linears becomes one score, by the setting `aggregate`."""


@dataclass(frozen=True)
class LlmPruner:
    """Scores a unit by the change of the loss if the weights coupled in it go (Ma et al. 2023, section 3.2).

    order:      first: w g; second: w² E g²; mixed: w g - ½ w² E g² (eq. 4), g the loss's gradient of a sequence,
                E the mean over sequences.
    importance: element: magnitudes of single weights are summed; vector: weights of a channel are summed first.
    aggregate:  over the linears that a unit is a part of: sum, product, max, or the last of them (o, down).

    As the public code: E g² in eq. 4's second term, where eq. 4 as printed sums over sequences; `mixed` there is
    broken for whole heads. Departs from it: calibration sequences as configured in place of 10 of 64 tokens; biases of
    removed rows count; scores are divided by a unit's parameters, so that heads and channels can be ranked together;
    no fine-tuning afterwards.
    """

    paper: ClassVar[str] = "Ma et al. 2023, LLM-Pruner: structural pruning of large language models"
    needs: ClassVar[frozenset[Need]] = frozenset({"salience"})
    allocation: ClassVar[Allocation] = "uniform"
    compensation: ClassVar[Compensation] = "none"

    order: Literal["first", "second", "mixed"] = "first"
    importance: Literal["element", "vector"] = "element"
    aggregate: Literal["sum", "product", "max", "last"] = "sum"

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,); raises ValueError without the problem's salience."""
        if problem.salience is None:
            raise ValueError("llm_pruner needs the problem's salience")
        term = SECOND if self.order == "second" else f"{self.importance}.{self.order}"
        return REDUCE[self.aggregate](problem.salience[term]) / problem.parameters
