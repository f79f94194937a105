"""Share of a model's block weights that nn.Linear covers; no method prunes the rest (fused experts, for instance)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from stages.errors import ArchitectureError
from stages.models.streaming.streamed import StreamedModel

SHOWN = 3
"""How many uncovered parameters a message names."""


@dataclass(frozen=True)
class Coverage:
    """Weights of all blocks (parameters with two or more dimensions) and those that belong to no linear.

    weights: number of entries of all; uncovered: shapes of those that no linear covers, by name.
    """

    weights: int
    uncovered: Mapping[str, tuple[int, ...]]

    @property
    def share(self) -> float:
        """Share of the entries that linears cover, 0 to 1."""
        return 1 - sum(map(prod, self.uncovered.values())) / self.weights

    def described(self) -> str:
        """A line on what is not covered: its share, and the names and shapes of the largest."""
        largest = sorted(self.uncovered.items(), key=lambda item: -prod(item[1]))
        names = [f"{name} {shape}" for name, shape in largest[:SHOWN]]
        more = f" and {len(self.uncovered) - SHOWN} more" if len(self.uncovered) > SHOWN else ""
        return f"{1 - self.share:.1%} of the blocks' weights lie outside of nn.Linear: {', '.join(names)}{more}"


def coverage_of(model: StreamedModel) -> Coverage:
    """The coverage of all blocks' weights by the linears that structure.py finds."""
    total, uncovered = 0, dict[str, tuple[int, ...]]()
    for index in range(model.blocks):
        covered = {linear.tensor for linear in model.linears(index)}
        weights = model.block_weights(index)
        total += sum(map(prod, weights.values()))
        uncovered |= {name: shape for name, shape in weights.items() if name not in covered}
    return Coverage(total, uncovered)


def check_coverage(model: StreamedModel, largest: float) -> None:
    """Raise ArchitectureError, naming them, if more than `largest` of the blocks' weights belong to no linear."""
    coverage = coverage_of(model)
    if 1 - coverage.share > largest:
        raise ArchitectureError(
            f"{coverage.described()}: methods here prune linears only, expected at most {largest:.1%} "
            "(solve.max_uncovered): support for experts is not there yet; raise solve.max_uncovered to "
            f"{ceil(100 * (1 - coverage.share)) / 100:g} to leave these weights dense"
        )
