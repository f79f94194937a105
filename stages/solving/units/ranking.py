"""Ranks heads and channels to solve.sparsity: over the whole model, or the same number in every block, under rules."""

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


def rule_parts(units: Sequence[Units]) -> list[BlockUnits]:
    """The parts of the model that solve.rules can select in structured pruning."""
    return [BlockUnits(ROLES[part.kind], part.block) for part in units]


def match_unit_rules(settings: Solve, units: Sequence[Units], blocks: int) -> list[int | None]:
    """The number of the rule that governs each of `units`, None where none does; see rules.match_rules."""
    return match_rules(settings.rules, rule_parts(units), blocks)


def parameters_to_remove(units: Sequence[Units], sparsity: float) -> int:
    """The budget: how many parameters of all heads and channels are to go."""
    return math.ceil(sparsity * parameters_of(units))


def units_to_rank(
    settings: Solve, units: Sequence[Units], scores: Sequence[Tensor], rules: Sequence[int | None]
) -> list[RankedUnits]:
    """The heads or channels of each block as they compete; their number is settled where a rule has a sparsity.

    scores: (units,) of each of `units`; rules: as from `match_unit_rules`.
    """
    return [_ranked(settings, *given) for given in zip(units, scores, rules, strict=True)]


def _ranked(settings: Solve, units: Units, scores: Tensor, number: int | None) -> RankedUnits:
    """The heads or channels of one block as they compete, governed by rule `number`."""
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
    settings: Solve, method: UnitMethod, units: Sequence[Units], ranked: Sequence[RankedUnits]
) -> list[Tensor]:
    """Which of the heads or channels of each block stay, (units,) bool, so that the budget is met.

    Raises ParameterError where it cannot be.
    """
    allocation = method.allocation if settings.units.allocation == "auto" else settings.units.allocation
    if settings.units.ranking == "literal":
        # α of eq. 8 of numerical pruning: 4 d/3 for a head of d inputs of o, 1 for a channel.
        factors = [4 * part.columns.shape[1] / 3 if part.kind == "heads" else 1.0 for part in units]
        return keep_above_threshold(ranked, settings.amount, factors)
    removed = parameters_to_remove(units, settings.amount)
    if allocation == "global":
        return keep_to_budget(ranked, removed)
    return _keep_uniformly(settings, units, ranked, removed)


def _keep_uniformly(
    settings: Solve, units: Sequence[Units], ranked: Sequence[RankedUnits], removed: int
) -> list[Tensor]:
    """The best of each block, the same number of heads and of channels in every block whose numbers no rule settles.

    Raises ParameterError where blocks differ, or channels cannot make up for what heads leave.
    """
    free = [part for part, competing in zip(units, ranked, strict=True) if competing.kept is None]
    if len({(part.kind, part.count, part.parameters) for part in free}) > len({part.kind for part in free}):
        raise ParameterError(
            "solve.units.allocation: uniform needs blocks of the same widths: set it to global, or settle the "
            "blocks that differ in solve.rules"
        )
    settled = sum(
        (part.count - competing.kept) * part.parameters
        for part, competing in zip(units, ranked, strict=True)
        if competing.kept is not None
    )
    kept, short = _uniform_counts(free, removed - settled, settings.units.multiple)
    if short > 0 or 0 in kept.values():
        raise ParameterError(
            f"solve.sparsity: {settings.amount:g} cannot be met with the same widths in every block: lower it, "
            "protect less, or set solve.units.allocation to global"
        )
    return [
        keep_best(competing.scores, kept[part.kind] if competing.kept is None else competing.kept)
        for part, competing in zip(units, ranked, strict=True)
    ]


def _uniform_counts(free: Sequence[Units], short: int, multiple: int) -> tuple[dict[Kind, int], int]:
    """How many heads and channels each block keeps so that `short` parameters go, and how many then still should.

    Heads lose their share of what is to go, rounded to whole heads; channels, which are smaller, lose the rest.
    """
    kept = dict[Kind, int]()
    for kind in ("heads", "channels"):
        group = [part for part in free if part.kind == kind]
        if not group:
            continue
        first = group[0]
        wanted = max(short, 0) / (len(group) * first.parameters)
        if kind == "heads" and len(group) < len(free):
            wanted = round(max(short, 0) / parameters_of(free) * first.count)
        kept[kind] = first.count - min(math.ceil(wanted), first.count - 1)
        if kind == "channels" and kept[kind] < first.count:
            kept[kind] = kept[kind] // multiple * multiple
        short -= len(group) * (first.count - kept[kind]) * first.parameters
    return kept, short
