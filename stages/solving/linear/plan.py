"""Plans of layer-wise pruning: which solver prunes each linear of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stages.methods import registry
from stages.models.streaming.streamed import StreamedModel
from stages.params import Params
from stages.params.pruning import Solve
from stages.runtime.clock import Clock
from stages.solving.linear.allocation import allocate
from stages.solving.linear.assignment import Assignment, assign
from stages.solving.linear.solver import LinearsSolver
from stages.solving.plan import BlockInputs
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class LinearPlan:
    """Prunes the weights of a block's linears; assignments: by linear. A BlockPlan."""

    assignments: Mapping[str, Assignment]

    @property
    def leaves_dense(self) -> bool:
        """See BlockPlan."""
        return all(one.leaves_dense for one in self.assignments.values())

    @property
    def corrects(self) -> bool:
        """See BlockPlan."""
        return any(one.corrects_target for one in self.assignments.values())

    @property
    def needs_attention(self) -> bool:
        """See BlockPlan."""
        return any(one.joint for one in self.assignments.values())

    def facts(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {name: one.facts() for name, one in self.assignments.items()}

    def settings(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {one.method: one.facts()["solver"] for one in self.assignments.values()}

    def code(self) -> set[str]:
        """See BlockPlan."""
        methods = (registry.modules_of(one.method, one.solver) for one in self.assignments.values())
        return {__name__}.union(*methods)

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, inputs: BlockInputs | None) -> LinearsSolver:
        """See BlockPlan."""
        return LinearsSolver(model, self.assignments, settings, clock, inputs)


def linear_plans(
    params: Params, model: StreamedModel, statistics: Callable[[int], list[InputStatistics]]
) -> list[LinearPlan]:
    """The plan of every block: solve.method and solve.rules, with the counts of solve.allocation.

    statistics: of the dense model's block, by its index. Raises ParameterError, ArchitectureError (see `assign`).
    """
    found = allocate(assign(params, model), params.solve, model, statistics)
    return [
        LinearPlan({linear.name: found[linear.name] for linear in model.linears(index)})
        for index in range(model.blocks)
    ]
