"""What every structured method takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class UnitProblem:
    """The units of one kind in a block, and what is known of the linear that reads them (o or down).

    dense:      (d_out, d_in) weight of that linear, in the dtype and on the device of `gram`.
    gram:       (d_in, d_in) mean over tokens of x xᵀ of its inputs; mean: (d_in,); tokens: how many.
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
Allocation = Literal["global", "uniform"]
Compensation = Literal["weights", "bias", "affine", "none"]


class UnitMethod(Protocol):
    """A method: a frozen dataclass of its settings.

    paper:        where it comes from, in one line.
    needs:        what of a problem it asks for beside the statistics.
    allocation:   how its paper ranks: all blocks together, or each block by itself.
    compensation: what its paper makes up for removed units by.
    """

    paper: str
    allocation: Allocation
    compensation: Compensation

    @property
    def needs(self) -> frozenset[Need]:
        """What of a problem it asks for."""
        ...


class UnitScorer(UnitMethod, Protocol):
    """A method that scores the units of one place from what is known of the linear that reads them."""

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,), higher for those more worth keeping; comparable between blocks, and per parameter.

        Inputs are left as they are.
        """
        ...


def per_unit(scores: Tensor, columns: Tensor) -> Tensor:
    """Mean score (units,) of the columns (units, columns of each) of each unit; scores: (d_in,)."""
    return scores[columns.to(scores.device)].mean(1)
