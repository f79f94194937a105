"""Contract of structured methods: UnitProblem and the protocols UnitMethod and UnitScorer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class UnitProblem:
    """The heads or the channels of a block to be scored, with the statistics of the linear that reads them (o or down).

    dense:      W, (d_out, d_in) weight of that linear, in the dtype and on the device of `gram`.
    gram:       G, (d_in, d_in) mean over tokens of x xᵀ of its inputs; mean: (d_in,); tokens: how many.
    columns:    (units, columns of each) inputs that belong to each unit.
    parameters: of one unit, in all linears that it is a part of.
    coupled:    all weights of each unit, (units, weights of each): rows of the linears that make it, then its columns
                of `dense`; this and the rest only for methods that ask for them (`needs`).
    salience:   how much of the calibration text's loss each unit carries: (units, linears) for each term of
                linalg/salience.py, the linears that make it and then this one.
    fisher:     (d_out, d_out) mean over tokens of g gᵀ, g the gradient of the loss in this linear's outputs.
    """

    dense: Tensor
    gram: Tensor
    mean: Tensor
    tokens: int
    columns: Tensor
    parameters: int
    coupled: Tensor | None = None
    salience: Mapping[str, Tensor] | None = None
    fisher: Tensor | None = None


Need = Literal["coupled", "salience", "fisher"]
"""Optional fields of UnitProblem that a method may ask for."""
Allocation = Literal["global", "uniform"]
"""How units are ranked: all blocks compete, or every block loses the same number."""
Compensation = Literal["weights", "bias", "affine", "none"]
"""What makes up for removed units: a refit of the kept weights of o and down, a bias for the mean, or both."""


class UnitMethod(Protocol):
    """A structured method: a frozen dataclass of its settings.

    paper:        its source, in one line.
    needs:        optional fields of UnitProblem that it uses.
    allocation:   its paper's, the default of solve.units.allocation.
    compensation: its paper's, the default of solve.units.compensation.
    """

    paper: str
    allocation: Allocation
    compensation: Compensation

    @property
    def needs(self) -> frozenset[Need]:
        """Optional fields of UnitProblem that it uses."""
        ...


class UnitScorer(UnitMethod, Protocol):
    """A structured method that scores units when called with a UnitProblem."""

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,), higher for those more worth keeping; per parameter, and comparable between blocks.

        Inputs are not modified.
        """
        ...


def per_unit(scores: Tensor, columns: Tensor) -> Tensor:
    """Mean over each unit's inputs, (units,), of scores (d_in,). columns: (units, columns of each)."""
    return scores[columns.to(scores.device)].mean(1)
