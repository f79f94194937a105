"""Ranks heads and channels to the budget: which of them stay, of the whole model or the same number in every block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.masks import removed_count
from stages.methods.units.contract import UnitMethod
from stages.methods.units.ranking import RankedUnits, keep_above_threshold, keep_best, keep_to_budget
from stages.models.streaming.units import Kind, Units, parameters_of
from stages.params.pruning import Solve
from stages.solving.rules import BlockUnits, match_rules
from stages.solving.units.checks import ROLES
from stages.solving.units.problem import parameters_to_remove


def rule_parts(units: Sequence[Units]) -> list[BlockUnits]:
    """What rules can speak of, of a structured method."""
    return [BlockUnits(ROLES[one.kind], one.block) for one in units]


def match_unit_rules(settings: Solve, units: Sequence[Units], blocks: int) -> list[int | None]:
    """For the heads and the channels of each block the number of the rule that settles how many stay."""
    return match_rules(settings.rules, rule_parts(units), blocks)


def units_to_rank(
    settings: Solve, units: Sequence[Units], scores: Sequence[Tensor], rules: Sequence[int | None]
) -> list[RankedUnits]:
    """The heads or channels of each block as they compete, their number settled where rule `rules[i]` says so."""
    return [_place(settings, *given) for given in zip(units, scores, rules, strict=True)]


def _place(settings: Solve, units: Units, scores: Tensor, number: int | None) -> RankedUnits:
    """The units of one place as they are ranked; their number is settled where rule `number` says so."""
    multiple = settings.units.multiple if units.kind == "channels" else 1
    if multiple > units.count:
        raise ParameterError(
            f"solve.units.multiple: expected at most the {units.count} channels of block {units.block}, got {multiple}"
        )
    sparsity = None if number is None else settings.rules[number].sparsity
    if sparsity is None:
        return RankedUnits(scores, units.parameters, None, multiple)
    kept = units.count - removed_count(units.count, sparsity)
    if kept < units.count:
        kept = kept // multiple * multiple
    if kept == 0:
        raise ParameterError(
            f"solve.rules[{number}].sparsity: {sparsity:g} would leave block {units.block} no "
            f"{units.kind} of its {units.count}: expected at most {1 - multiple / units.count:.3f}"
        )
    return RankedUnits(scores, units.parameters, kept, multiple)


def kept_units(
    settings: Solve, method: UnitMethod, units: Sequence[Units], places: Sequence[RankedUnits]
) -> list[Tensor]:
    """Which units (units,) bool of each place stay, so that the budget is met.

    Raises ParameterError where it cannot be.
    """
    allocation = method.allocation if settings.units.allocation == "auto" else settings.units.allocation
    if settings.units.ranking == "literal":
        factors = [4 * one.columns.shape[1] / 3 if one.kind == "heads" else 1.0 for one in units]
        return keep_above_threshold(places, settings.amount, factors)
    removed = parameters_to_remove(units, settings.amount)
    if allocation == "global":
        return keep_to_budget(places, removed)
    return _uniform(settings, units, places, removed)


def _uniform(settings: Solve, units: Sequence[Units], places: Sequence[RankedUnits], removed: int) -> list[Tensor]:
    """The same number of heads and of channels of every block that no rule settles, channels so that the budget is met.

    Raises ParameterError where blocks differ, or channels cannot make up for what heads leave.
    """
    free = [(one, place) for one, place in zip(units, places, strict=True) if place.kept is None]
    if len({(one.kind, one.count, one.parameters) for one, _ in free}) > len({one.kind for one, _ in free}):
        raise ParameterError(
            "solve.units.allocation: uniform needs blocks of the same widths: set it to global, or settle the "
            "blocks that differ in solve.rules"
        )
    short = removed - sum(
        (one.count - place.kept) * one.parameters
        for one, place in zip(units, places, strict=True)
        if place.kept is not None
    )
    kept = dict[Kind, int]()
    for kind in ("heads", "channels"):
        group = [one for one, _ in free if one.kind == kind]
        if not group:
            continue
        first, multiple = group[0], 1 if kind == "heads" else settings.units.multiple
        wanted = max(short, 0) / (len(group) * first.parameters)
        if kind == "heads" and len(group) < len(free):
            wanted = round(max(short, 0) / parameters_of([one for one, _ in free]) * first.count)
        kept[kind] = first.count - min(math.ceil(wanted), first.count - 1)
        if kept[kind] < first.count:
            kept[kind] = kept[kind] // multiple * multiple
        short -= len(group) * (first.count - kept[kind]) * first.parameters
    if short > 0 or 0 in kept.values():
        raise ParameterError(
            f"solve.sparsity: {settings.amount:g} cannot be met with the same widths in every block: lower it, "
            "protect less, or set solve.units.allocation to global"
        )
    return [
        keep_best(place.scores, kept[one.kind] if place.kept is None else place.kept)
        for one, place in zip(units, places, strict=True)
    ]
