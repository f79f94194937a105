"""SliceGPT: rotates hidden states to their principal components and drops the last of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stages.errors import ParameterError
from stages.methods.rotation.contract import Sizes


@dataclass(frozen=True)
class SliceGpt:
    """Rotates what enters each norm to its principal components, keeps the first (Ashkboos et al. 2024, section 3).

    An RMS norm commutes with rotations Q once its scale is in the linears after it, so between norms the hidden
    states can be x Q with a Q of their own for each; residual connections take Qᵀ Q' from one to the next. The
    components are those of the Gram matrix, not centred, of what the sliced blocks before give.

    amount: parameters: `solve.sparsity` is the share of the blocks' parameters that goes, the matrices on residual
            connections counted as parameters that come; width: the share of the hidden width, as in the paper.
    signal: states: components of what enters the norms, as the public code has it; normed: of what leaves them, where
            every token weighs the same.
    round:  the width kept is a multiple of it; 8 in the public code.
    head:   whether what enters the head is sliced too; it is not in the public code.

    Departs from the public code: no damping of the Gram matrix, which moves no component; where the embeddings are
    the head's weight they stay whole and tied, and a matrix before block 0 rotates and slices what they give.
    """

    paper: ClassVar[str] = "Ashkboos et al. 2024, SliceGPT: compress large language models by deleting rows and columns"

    amount: Literal["parameters", "width"] = "parameters"
    signal: Literal["states", "normed"] = "states"
    round: Annotated[int, Field(ge=1)] = 1
    head: bool = False

    def width(self, sizes: Sizes, sparsity: float) -> int:
        """The largest width that removes at least `sparsity`; all of it where nothing is to go.

        Raises ParameterError where none is left.
        """
        if self.round > sizes.width:
            raise ParameterError(f"round: expected at most the hidden width {sizes.width}, got {self.round}")
        if sparsity == 0:
            return sizes.width
        for width in range(sizes.width - sizes.width % self.round, 0, -self.round):
            if self._removed(sizes, width) >= sparsity:
                return width
        raise ParameterError(
            f"solve.sparsity: {sparsity:g} of the {self.amount} leaves no width that is a multiple of {self.round}: "
            f"expected at most {self._removed(sizes, self.round):.3f}"
        )

    def _removed(self, sizes: Sizes, width: int) -> float:
        """Share of the hidden width, or of the blocks' parameters, that slicing to `width` removes."""
        if self.amount == "width":
            return 1 - width / sizes.width
        return 1 - sizes.kept(width, self.head) / sizes.dense
