"""Contract of methods that slice the hidden width: a model's parameter counts as a function of that width."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Parameters of a model's blocks, as a function of how wide the hidden states are.

    width:  hidden width of the dense model.
    dense:  parameters of all linears of its blocks.
    rows:   of linears, in all blocks, that have `width` inputs or outputs: parameters for each unit of width.
    last:   those of them that add to what leaves the last block.
    fixed:  the rest (biases of linears that read the hidden states).
    blocks: how many there are.
    tied:   whether the embeddings are the head's weight.
    """

    width: int
    dense: int
    rows: int
    last: int
    fixed: int
    blocks: int
    tied: bool

    def kept(self, width: int, head: bool) -> int:
        """Parameters of the blocks' linears for hidden states of `width`, matrices on residual connections included.

        head: whether what leaves the last block is sliced too.
        """
        final = width if head else self.width
        linears = self.fixed + (self.rows - self.last) * width + self.last * final
        shortcuts = (2 * self.blocks - 1) * width * width + width * final
        return linears + shortcuts + (self.width * width if self.tied and not head else 0)
