"""BlockPlan of pruning by trained gates (D-gating): which units stay, with their trained and scaled weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from stages.errors import ParameterError
from stages.methods.units.contract import UnitMethod
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KeptUnits, units_of
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
    """Removes heads and channels; what stays has trained weights, scaled by its units' gates. See BlockPlan.

    index: of the block; the other fields as UnitPlan's.
    """

    index: int
    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: KeptUnits
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
    """The plan of every block, and facts of the training for the manifest: units are ranked by their gates' sizes.

    identity: of the model. Raises ParameterError where the budget or a rule cannot be met, ArchitectureError where
    the model's heads or channels are not recognised.
    """
    settings, method = run.params.solve, method_of(run.params)
    units = units_to_prune(run.params, model)
    rules = match_unit_rules(settings, units, model.blocks)
    ranked = units_to_rank(settings, units, [torch.zeros(part.count) for part in units], rules)
    # A budget that no scores can meet is refused here, before hours of training.
    kept_units(settings, method, units, ranked)
    free = [competing.kept != len(competing.scores) for competing in ranked]
    if not any(free):
        raise ParameterError(
            f"solve.rules: every head and channel is to stay: {settings.method} has nothing to gate: leave some out of "
            "the rules"
        )
    gates = train(run, model, identity, units, free)
    kept = choose_units(run.params, units, [gates.sizes(part) for part in units], model.blocks)
    if not (gates.weights or compensation_of(settings, method) == "none"):
        return plans_keeping(run, kept), gates.facts
    gates, own = choose_scale_power(run, model, gates, kept), run.params.methods.get(settings.method, {})
    plans = [GatePlan(index, settings.method, method, own, of_block, gates) for index, of_block in enumerate(kept)]
    return plans, gates.facts
