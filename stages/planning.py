"""What is to be done to a block, by layer-wise methods or by structured ones: the walk asks no further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from stages import methods
from stages.assignment import Assignment
from stages.attending import Attending
from stages.clock import Clock
from stages.linalg.masks import pack
from stages.models.streamed import StreamedModel
from stages.models.units import Kind, units_of
from stages.params.pruning import Solve
from stages.solving import BlockSolver
from stages.structured.contract import UnitMethod
from stages.trained import Trained
from stages.unit_solving import UnitSolver


@dataclass(frozen=True)
class LinearPlan:
    """Weights of linears; assignments by linear."""

    assignments: Mapping[str, Assignment]

    @property
    def leaves_dense(self) -> bool:
        """Whether nothing is to be removed."""
        return all(one.leaves_dense for one in self.assignments.values())

    @property
    def corrects(self) -> bool:
        """Whether targets are corrected toward the dense model."""
        return any(one.corrects_target for one in self.assignments.values())

    @property
    def joint(self) -> bool:
        """Whether a method of the attention matrix is in use."""
        return any(one.joint for one in self.assignments.values())

    def facts(self) -> dict[str, Any]:
        """What the solution follows from, as JSON."""
        return {name: one.facts() for name, one in self.assignments.items()}

    def settings(self) -> dict[str, Any]:
        """Settings of each method in use, as JSON."""
        return {one.method: one.facts()["solver"] for one in self.assignments.values()}

    def code(self) -> set[str]:
        """Modules of the methods in use."""
        return set().union(*(methods.modules_of(one.method, one.solver) for one in self.assignments.values()))

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, attending: Attending | None) -> BlockSolver:
        """Who solves the block."""
        return BlockSolver(model, self.assignments, settings, clock, attending)


@dataclass(frozen=True)
class UnitPlan:
    """Heads and channels; kept: (units,) bool by kind."""

    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: Mapping[Kind, Tensor]
    corrects: bool
    joint: bool = False

    @property
    def leaves_dense(self) -> bool:
        """Whether nothing is to be removed."""
        return all(bool(keep.all()) for keep in self.kept.values())

    def facts(self) -> dict[str, Any]:
        """What the solution follows from, as JSON."""
        kept = {kind: bytes(pack(keep).tolist()).hex() for kind, keep in self.kept.items()}
        return {"method": self.method, "settings": dict(self.own), "kept": kept, "corrected": self.corrects}

    def settings(self) -> dict[str, Any]:
        """Settings of each method in use, as JSON."""
        return {self.method: dict(self.own)}

    def code(self) -> set[str]:
        """Modules of the method in use."""
        return methods.modules_of(self.method, self.scorer)

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, attending: Attending | None) -> UnitSolver:
        """Who solves the block."""
        return UnitSolver(model, self.method, self.scorer, self.kept, settings, clock)


@dataclass(frozen=True)
class TrainedPlan:
    """Heads and channels, where other weights than the dense ones stay: trained ones, scaled by their units' gates."""

    index: int
    method: str
    scorer: UnitMethod
    own: Mapping[str, Any]
    kept: Mapping[Kind, Tensor]
    trained: Trained
    corrects: bool = False
    joint: bool = False
    leaves_dense: bool = False

    def facts(self) -> dict[str, Any]:
        """What the solution follows from, as JSON."""
        return {**self._units.facts(), "trained": [self.trained.key, self.trained.power]}

    def settings(self) -> dict[str, Any]:
        """Settings of each method in use, as JSON."""
        return self._units.settings()

    def code(self) -> set[str]:
        """Modules of the method in use."""
        return self._units.code()

    def solver(self, model: StreamedModel, settings: Solve, clock: Clock, attending: Attending | None) -> UnitSolver:
        """Who solves the block."""
        weight = partial(self.trained.weight, kinds=units_of(model, self.index), model=model)
        return UnitSolver(model, self.method, self.scorer, self.kept, settings, clock, weight)

    @property
    def _units(self) -> UnitPlan:
        return UnitPlan(self.method, self.scorer, self.own, self.kept, self.corrects)


Plan = LinearPlan | UnitPlan | TrainedPlan
