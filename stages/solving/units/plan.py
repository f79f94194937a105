"""Plans of structured pruning: which heads and channels of a block stay, and what makes up for the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.artifacts.packing import pack
from stages.methods import registry
from stages.methods.units.contract import UnitMethod
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind
from stages.params.pruning import Solve
from stages.runtime.clock import Clock
from stages.runtime.stage import StageRun
from stages.solving.plan import BlockInputs
from stages.solving.units.checks import compensation_of, method_of, units_to_prune
from stages.solving.units.choice import choose_units
from stages.solving.units.scores import unit_scores
from stages.solving.units.solver import UnitSolver


@dataclass(frozen=True)
class UnitPlan:
    """Removes heads and channels of a block. A BlockPlan.

    method: name of the method; scorer: the method, of these settings (`own`); kept: (units,) bool by kind.
    """

    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: Mapping[Kind, Tensor]
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

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, inputs: BlockInputs | None) -> UnitSolver:
        """See BlockPlan."""
        return UnitSolver(model, self.method, self.scorer, self.kept, settings, clock)


def unit_plans(run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any]) -> list[UnitPlan]:
    """The plan of every block: units scored from the dense model's statistics and ranked to solve.sparsity.

    identity: of the model; statistics: the manifest of the dense model's.
    Raises ParameterError where the budget or a rule cannot be met, ArchitectureError where units cannot be told.
    """
    units = units_to_prune(run.params, model)
    scores = unit_scores(run, model, identity, statistics)
    kept = choose_units(run.params, units, [scores[one.block][one.kind] for one in units], model.blocks)
    return plans_keeping(run, kept)


def plans_keeping(run: StageRun, kept: list[dict[Kind, Tensor]]) -> list[UnitPlan]:
    """Plans that keep these units (units,) bool, by kind, of every block."""
    settings, method = run.params.solve, method_of(run.params)
    own = run.params.methods.get(settings.method, {})
    corrects = settings.corrects(compensation_of(settings, method) in ("weights", "affine"))
    return [UnitPlan(settings.method, method, own, one, corrects) for one in kept]
