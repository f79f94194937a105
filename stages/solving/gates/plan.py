"""BlockPlan of pruning by trained gates (D-gating): which units stay, with their trained and scaled weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from stages.errors import ParameterError
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
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
    """Removes heads and channels; what stays has trained weights, scaled by their units' gates. See BlockPlan.

    index: of the block; units: which of its units stay.
    """

    index: int
    units: UnitPlan
    trained: TrainedGates
    corrects: bool = False
    needs_attention: bool = False
    leaves_dense: bool = False

    def facts(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {**self.units.facts(), "trained": [self.trained.key, self.trained.power]}

    def settings(self) -> dict[str, Any]:
        """See BlockPlan."""
        return self.units.settings()

    def code(self) -> set[str]:
        """See BlockPlan."""
        return {__name__, *self.units.code()}

    def solver(self, model: StreamedModel, settings: Solve, cost: BlockCost, inputs: BlockInputs | None) -> UnitSolver:
        """See BlockPlan."""
        weight = partial(self.trained.weight, kinds=units_of(model, self.index), model=model)
        return replace(self.units.solver(model, settings, cost, inputs), trained_weight=weight)


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
    plans = plans_keeping(run, kept)
    if not (gates.weights or compensation_of(settings, method) == "none"):
        return plans, gates.facts
    gates = choose_scale_power(run, model, gates, kept)
    # Trained weights answer to the loss, not to the dense outputs that a corrected target aims at.
    return [GatePlan(index, replace(plan, corrects=False), gates) for index, plan in enumerate(plans)], gates.facts
