"""Per-block pruning plans: what is removed from a block, by which solver, and what the result follows from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stages.artifacts.solution import BlockSolution
from stages.artifacts.table import Row
from stages.models.streaming.streamed import StreamedModel
from stages.params.pruning import Solve
from stages.runtime.clock import Clock
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class BlockInputs:
    """Files of the hidden states entering block `index`, for methods that run its attention themselves.

    model:        one that nothing else runs meanwhile; it then has the dense block in memory.
    states:       of the pruned model; dense_states: of the dense model for the same tokens.
    """

    model: StreamedModel
    index: int
    states: Path
    dense_states: Path


class BlockSolver(Protocol):
    """Prunes the linears of one block from the statistics of their inputs."""

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index`, input after input, and give its linears in order.

        put: whether a solved linear goes into the loaded block before the next input's statistics are taken.
        """
        ...


class BlockPlan(Protocol):
    """What is to be done to one block; plans are pickled to workers."""

    @property
    def leaves_dense(self) -> bool:
        """Whether nothing is removed from the block."""
        ...

    @property
    def corrects(self) -> bool:
        """Whether targets are corrected toward the dense model's outputs, so that it runs beside the pruned one."""
        ...

    @property
    def needs_attention(self) -> bool:
        """Whether the solver runs the block's attention itself (BlockInputs)."""
        ...

    def facts(self) -> dict[str, Any]:
        """All that the solution follows from beside the block's inputs, as JSON: a part of its key."""
        ...

    def settings(self) -> dict[str, Any]:
        """Settings of each method in use, as JSON, by the method's name."""
        ...

    def code(self) -> set[str]:
        """Dotted names of the modules that the solution follows from: the plan's own and the methods'."""
        ...

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, inputs: BlockInputs | None) -> BlockSolver:
        """The solver of the block; inputs: where the plan needs attention."""
        ...


@dataclass(frozen=True)
class Solved:
    """A solved model, ready to be published.

    paths: of every block's solution in the block store; rows: of the table of linears; facts: for the manifest.
    forget: drops from the block store what only an interrupted run would need again.
    """

    paths: list[Path]
    rows: list[Row]
    facts: dict[str, Any]
    forget: Callable[[], None]
