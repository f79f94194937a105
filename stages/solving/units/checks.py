"""Checks of structured pruning before any work: rules and settings that do not fit, models that were cut before."""

from __future__ import annotations

from stages.artifacts.places import MODEL
from stages.errors import ArchitectureError, ParameterError
from stages.methods import registry
from stages.methods.units.contract import Compensation, UnitMethod
from stages.models.classes.hetero import lost_units
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind, Units, units_of
from stages.params import Params
from stages.params.pruning import Solve

ROLES: dict[Kind, str] = {"heads": "attention", "channels": "mlp"}
"""The role by which solve.rules select a block's heads or channels."""


def method_of(params: Params) -> UnitMethod:
    """The structured method that is solve.method, with its settings."""
    method: UnitMethod = registry.load(params.solve.method, params.methods.get(params.solve.method, {}))
    return method


def compensation_of(settings: Solve, method: UnitMethod) -> Compensation:
    """How o and down are compensated for removed units: solve.units.compensation, `auto` being the method's own."""
    compensation = settings.units.compensation
    return method.compensation if compensation == "auto" else compensation


def units_to_prune(params: Params, model: StreamedModel) -> list[Units]:
    """Heads and channels of every block, in order, after all checks of solve's settings.

    Raises ParameterError for settings that do not fit together, ArchitectureError for a model whose units are not
    recognised or were removed before.
    """
    check_rules(params.solve, model)
    _check_units(params.solve, method_of(params))
    return [units for index in range(model.blocks) for units in units_of(model, index)]


def check_rules(settings: Solve, model: StreamedModel) -> None:
    """Raise ParameterError where solve.rules select linears, which structured methods do not prune one by one.

    Raises ArchitectureError for a checkpoint whose units were removed before.
    """
    method, kind = settings.method, str(model.config.model_type)
    if lost_units(model.config):
        raise ArchitectureError(
            f"{MODEL}: {kind} has lost heads or channels before, and {method} cannot take more of it: expected a dense "
            "model; fetch that one and set solve.sparsity to the whole that is to go"
        )
    for number, rule in enumerate(settings.rules):
        unknown = set(rule.roles or ()) - set(ROLES.values())
        if unknown:
            raise ParameterError(
                f"solve.rules[{number}].roles: {method} removes whole units: expected attention (heads) or mlp "
                f"(channels), got {', '.join(sorted(unknown))}"
            )


def _check_units(settings: Solve, scorer: UnitMethod) -> None:
    """Raise ParameterError where settings of solve.units contradict each other or the method."""
    units, method = settings.units, settings.method
    if units.ranking == "literal":
        for name, value, only in (("multiple", units.multiple, 1), ("allocation", units.allocation, "auto")):
            if value not in (only, "global"):
                raise ParameterError(
                    f"solve.units.{name}: ranking: literal puts one threshold through single units of all blocks: "
                    f"expected {only}, got {value}: or set ranking to parameters"
                )
    if units.choice == "pruned" and scorer.needs & {"salience", "fisher"}:
        raise ParameterError(
            f"solve.units.choice: {method} scores units by gradients, which are the dense model's: expected dense, got "
            f"pruned: or use a method, or settings in methods.{method}, without gradients"
        )
