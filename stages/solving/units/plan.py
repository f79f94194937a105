"""BlockPlan of structured pruning: which heads and channels of a block stay, and how the rest is compensated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.artifacts.packing import pack
from stages.methods import registry
from stages.methods.units.contract import UnitMethod
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KeptUnits
from stages.params.pruning import Solve
from stages.runtime.cost import BlockCost
from stages.runtime.stage import StageRun
from stages.solving.plan import BlockInputs
from stages.solving.units.checks import compensation_of, method_of, units_to_prune
from stages.solving.units.choice import choose_units
from stages.solving.units.scores import unit_scores
from stages.solving.units.solver import UnitSolver


@dataclass(frozen=True)
class UnitPlan:
    """Removes heads and channels of a block; see BlockPlan.

    method: name of the method; scorer: the method with its settings; own: these settings as params.yaml has them.
    """

    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: KeptUnits
    corrects: bool
    needs_attention: bool = False

    @property
    def leaves_dense(self) -> bool:
        """See BlockPlan."""
        return all(bool(keep.all()) for keep in self.kept.values())

    def facts(self) -> dict[str, Any]:
        """See BlockPlan."""
        kept = {kind: bytes(pack(keep).tolist()).hex() for kind, keep in self.kept.items()}
        return {"method": self.method, "settings": dict(self.own), "kept": kept, "corrected": self.corrects}

    def settings(self) -> dict[str, Any]:
        """See BlockPlan."""
        return {self.method: dict(self.own)}

    def code(self) -> set[str]:
        """See BlockPlan."""
        return {__name__, *registry.modules_of(self.method, self.scorer)}

    def solver(self, model: StreamedModel, settings: Solve, cost: BlockCost, inputs: BlockInputs | None) -> UnitSolver:
        """See BlockPlan."""
        return UnitSolver(model, self.method, self.scorer, self.kept, settings, cost)


def unit_plans(run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any]) -> list[UnitPlan]:
    """The plan of every block: units scored on the dense model's statistics and ranked to solve.sparsity.

    identity: of the model; statistics: the manifest of data/statistics.
    Raises ParameterError where the budget or a rule cannot be met, ArchitectureError where the model's heads or
    channels are not recognised.
    """
    units = units_to_prune(run.params, model)
    scores = unit_scores(run, model, identity, statistics)
    in_order = [scores[kind_of_block.block][kind_of_block.kind] for kind_of_block in units]
    return plans_keeping(run, choose_units(run.params, units, in_order, model.blocks))


def plans_keeping(run: StageRun, kept: Sequence[KeptUnits]) -> list[UnitPlan]:
    """The plan of every block that keeps the given units of it."""
    settings, method = run.params.solve, method_of(run.params)
    own = run.params.methods.get(settings.method, {})
    corrects = settings.corrects(compensation_of(settings, method) in ("weights", "affine"))
    return [UnitPlan(settings.method, method, own, units, corrects) for units in kept]
