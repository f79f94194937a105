"""Per-block pruning plans: which solver prunes a block, and what its result depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stages.artifacts.solution import BlockSolution
from stages.artifacts.table import Row
from stages.models.streaming.streamed import StreamedModel
from stages.params.pruning import Solve
from stages.runtime.cost import BlockCost
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class BlockInputs:
    """Hidden states entering block `index`, for solvers that run its attention themselves.

    model:        an instance that nothing else runs meanwhile; it holds the dense block in memory.
    states:       file of the states of the pruned model, (sequences, length, width); dense_states: of the dense model
                  for the same tokens.
    """

    model: StreamedModel
    index: int
    states: Path
    dense_states: Path


class BlockSolver(Protocol):
    """Prunes the linears of one block from the statistics of their inputs."""

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index` from the statistics of its inputs, in the order in which the block calls for them.

        put: whether each solved weight is put into the loaded block before the next input's statistics are taken.
        """
        ...


class BlockPlan(Protocol):
    """Plan of one block: the solver and its settings. Plans are pickled to workers."""

    @property
    def leaves_dense(self) -> bool:
        """Whether the block stays as it is."""
        ...

    @property
    def corrects(self) -> bool:
        """Whether targets are corrected toward the dense model's outputs: its block then runs beside the pruned one."""
        ...

    @property
    def needs_attention(self) -> bool:
        """Whether the solver runs the block's attention itself (BlockInputs)."""
        ...

    def facts(self) -> dict[str, Any]:
        """Everything the solution depends on beside the block's inputs, as JSON values: a part of its key."""
        ...

    def settings(self) -> dict[str, Any]:
        """Settings of each method in use by its name, as JSON values, for the manifest."""
        ...

    def code(self) -> set[str]:
        """Dotted names of the modules whose source the solution depends on: the plan's own and its methods'."""
        ...

    def solver(self, model: StreamedModel, settings: Solve, cost: BlockCost, inputs: BlockInputs | None) -> BlockSolver:
        """The block's solver. inputs: given where `needs_attention`; cost: takes its seconds."""
        ...


@dataclass(frozen=True)
class Solved:
    """The solution of a whole model, ready to be published by the solve stage.

    paths:  file of every block's solution in the block store.
    rows:   of the table of linears (artifacts/linears.py).
    facts:  for the manifest.
    forget: drops from the block store what only an interrupted run would need again.
    """

    paths: list[Path]
    rows: list[Row]
    facts: dict[str, Any]
    forget: Callable[[], None]
