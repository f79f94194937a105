"""Plans of pruning by trained gates (D-gating): which units stay, and the trained weights that stay of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.methods.units.contract import UnitMethod
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind, units_of
from stages.params.pruning import Solve
from stages.runtime.cost import BlockCost
from stages.runtime.stage import StageRun
from stages.solving.gates.result import TrainedGates
from stages.solving.gates.scales import choose_scale_power
from stages.solving.gates.training import train
from stages.solving.plan import BlockInputs, BlockPlan
from stages.solving.units.checks import compensation_of, method_of, units_to_prune
from stages.solving.units.choice import choose_units
from stages.solving.units.plan import UnitPlan, plans_keeping
from stages.solving.units.ranking import kept_units, match_unit_rules, units_to_rank
from stages.solving.units.solver import UnitSolver


@dataclass(frozen=True)
class GatePlan:
    """Removes heads and channels, and what stays is trained: weights scaled by their units' gates. A BlockPlan."""

    index: int
    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: Mapping[Kind, Tensor]
    trained: TrainedGates
    corrects: bool = False
    needs_attention: bool = False
    leaves_dense: bool = False

    def facts(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {**self._units.facts(), "trained": [self.trained.key, self.trained.power]}

    def settings(self) -> dict[str, Any]:
        """See BlockPlan."""
        return self._units.settings()

    def code(self) -> set[str]:
        """See BlockPlan."""
        return {__name__, *self._units.code()}

    def solver(self, model: StreamedModel, settings: Solve, cost: BlockCost, inputs: BlockInputs | None) -> UnitSolver:
        """See BlockPlan."""
        weight = partial(self.trained.weight, kinds=units_of(model, self.index), model=model)
        return UnitSolver(model, self.method, self.scorer, self.kept, settings, cost, weight)

    @property
    def _units(self) -> UnitPlan:
        return UnitPlan(self.method, self.scorer, self.own, self.kept, self.corrects)


def gate_plans(run: StageRun, model: StreamedModel, identity: str) -> tuple[Sequence[BlockPlan], dict[str, Any]]:
    """The plan of every block, and facts of the training: units are ranked by what is left of them after it.

    Raises ParameterError where the budget or a rule cannot be met, ArchitectureError where units cannot be told.
    """
    settings, method = run.params.solve, method_of(run.params)
    units = units_to_prune(run.params, model)
    scores = [torch.zeros(one.count) for one in units]
    places = units_to_rank(settings, units, scores, match_unit_rules(settings, units, model.blocks))
    kept_units(settings, method, units, places)  # a budget that no scores can meet is told before training
    if all(place.kept == len(place.scores) for place in places):
        raise ParameterError(
            f"solve.rules: every head and channel is to stay: {settings.method} has nothing to gate: leave some out of "
            "the rules"
        )
    gates = train(run, model, identity, units, [place.kept != len(place.scores) for place in places])
    kept = choose_units(run.params, units, [gates.sizes(one) for one in units], model.blocks)
    if not (gates.weights or compensation_of(settings, method) == "none"):
        return plans_keeping(run, kept), gates.facts
    gates, own = choose_scale_power(run, model, gates, kept), run.params.methods.get(settings.method, {})
    plans = [GatePlan(index, settings.method, method, own, one, gates) for index, one in enumerate(kept)]
    return plans, gates.facts
