"""Which heads and channels of the whole model stay: their scores, ranked to the budget under the rules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stages.models.streaming.units import Kind, Units
from stages.params import Params
from stages.solving.rules import log_rules
from stages.solving.units.checks import method_of
from stages.solving.units.ranking import kept_units, match_unit_rules, rule_parts, units_to_rank


def choose_units(
    params: Params, units: Sequence[Units], scores: Sequence[Tensor], blocks: int
) -> list[dict[Kind, Tensor]]:
    """The units (units,) bool of every block that stay, by kind; scores (units,) of each of `units`, higher to keep.

    Raises ParameterError where the budget or a rule cannot be met.
    """
    rules = match_unit_rules(params.solve, units, blocks)
    places = units_to_rank(params.solve, units, scores, rules)
    told = ["ranked with the rest" if place.kept is None else f"{place.kept} kept" for place in places]
    log_rules(rules, rule_parts(units), told, "times all heads or all channels of a block")
    kept: list[dict[Kind, Tensor]] = [{} for _ in range(blocks)]
    for one, keep in zip(units, kept_units(params.solve, method_of(params), units, places), strict=True):
        kept[one.block][one.kind] = keep
    return kept
