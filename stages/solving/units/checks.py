"""What structured pruning cannot do, told before any work: rules and settings that do not fit, models cut before."""

from __future__ import annotations

from stages.artifacts.places import MODEL
from stages.errors import ArchitectureError, ParameterError
from stages.methods import registry
from stages.methods.units.contract import Compensation, UnitMethod
from stages.models.classes.hetero import TYPES
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind, Units, units_of
from stages.params import Params
from stages.params.pruning import Solve

ROLES: dict[Kind, str] = {"heads": "attention", "channels": "mlp"}
"""The role by which a rule speaks of a block's heads or channels."""


def method_of(params: Params) -> UnitMethod:
    """The structured method of the parameters, with its settings."""
    method: UnitMethod = registry.load(params.solve.method, params.methods.get(params.solve.method, {}))
    return method


def compensation_of(settings: Solve, method: UnitMethod) -> Compensation:
    """What makes up for removed units: solve.units.compensation, or the method's own."""
    asked = settings.units.compensation
    return method.compensation if asked == "auto" else asked


def units_to_prune(params: Params, model: StreamedModel) -> list[Units]:
    """All heads and channels of the model, block after block, once it is known that they can be what solve asks for.

    Raises ParameterError and ArchitectureError (see `check_rules`).
    """
    check_rules(params.solve, model)
    _check_units(params.solve, method_of(params))
    return [one for index in range(model.blocks) for one in units_of(model, index)]


def check_rules(settings: Solve, model: StreamedModel) -> None:
    """Raise ParameterError where solve asks of a structured method what only layer-wise ones know.

    Raises ArchitectureError for a checkpoint whose units were removed before.
    """
    method, kind = settings.method, str(model.config.model_type)
    if kind in TYPES:
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
    """Raise ParameterError where solve.units asks for two things that do not go together."""
    asked, method = settings.units, settings.method
    if asked.ranking == "literal":
        for name, value, only in (("multiple", asked.multiple, 1), ("allocation", asked.allocation, "auto")):
            if value not in (only, "global"):
                raise ParameterError(
                    f"solve.units.{name}: ranking: literal puts one threshold through single units of all blocks: "
                    f"expected {only}, got {value}: or set ranking to parameters"
                )
    if asked.choice == "pruned" and scorer.needs & {"salience", "fisher"}:
        raise ParameterError(
            f"solve.units.choice: {method} scores units by gradients, which are the dense model's: expected dense, got "
            f"pruned: or use a method, or settings in methods.{method}, without gradients"
        )
