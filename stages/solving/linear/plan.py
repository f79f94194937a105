"""BlockPlan of layer-wise pruning: which method prunes each linear of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stages.methods import registry
from stages.models.streaming.streamed import StreamedModel
from stages.params import Params
from stages.params.pruning import Solve
from stages.runtime.cost import BlockCost
from stages.solving.linear.allocation import allocate
from stages.solving.linear.assignment import Assignment, assign
from stages.solving.linear.solver import LinearsSolver
from stages.solving.plan import BlockInputs
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class LinearPlan:
    """Prunes single weights of a block's linears; see BlockPlan. assignments: by the linear's name."""

    assignments: Mapping[str, Assignment]

    @property
    def leaves_dense(self) -> bool:
        """See BlockPlan."""
        return all(assignment.leaves_dense for assignment in self.assignments.values())

    @property
    def corrects(self) -> bool:
        """See BlockPlan."""
        return any(assignment.corrects_target for assignment in self.assignments.values())

    @property
    def needs_attention(self) -> bool:
        """See BlockPlan."""
        return any(assignment.joint for assignment in self.assignments.values())

    def facts(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {name: assignment.facts() for name, assignment in self.assignments.items()}

    def settings(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {assignment.method: assignment.facts()["solver"] for assignment in self.assignments.values()}

    def code(self) -> set[str]:
        """See BlockPlan."""
        used = self.assignments.values()
        return {__name__}.union(*(registry.modules_of(assignment.method, assignment.solver) for assignment in used))

    def solver(
        self, model: StreamedModel, settings: Solve, cost: BlockCost, inputs: BlockInputs | None
    ) -> LinearsSolver:
        """See BlockPlan."""
        return LinearsSolver(model, self.assignments, settings, cost, inputs)


def linear_plans(
    params: Params, model: StreamedModel, statistics: Callable[[int], list[InputStatistics]]
) -> list[LinearPlan]:
    """The plan of every block: solve.method and solve.rules assigned, sparsity shared out by solve.allocation.

    statistics: gives those of the inputs of a dense block, by its index. Raises as `assign` and `allocate` do.
    """
    assignments = allocate(assign(params, model), params.solve, model, statistics)
    return [
        LinearPlan({linear.name: assignments[linear.name] for linear in model.linears(index)})
        for index in range(model.blocks)
    ]
