"""Unit choice: which heads and channels of the whole model stay, by their scores, the budget and the rules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stages.models.streaming.units import KeptUnits, Kind, Units
from stages.params import Params
from stages.solving.rules import log_rules
from stages.solving.units.checks import method_of
from stages.solving.units.ranking import kept_units, match_unit_rules, rule_parts, units_to_rank


def choose_units(params: Params, units: Sequence[Units], scores: Sequence[Tensor], blocks: int) -> list[KeptUnits]:
    """The units of every block that stay.

    units: heads and channels of all blocks; scores: (units,) of each of `units`, higher for those more worth keeping.
    Raises ParameterError where the budget or a rule cannot be met.
    """
    rules = match_unit_rules(params.solve, units, blocks)
    ranked = units_to_rank(params.solve, units, scores, rules)
    outcomes = ["ranked with the rest" if competing.kept is None else f"{competing.kept} kept" for competing in ranked]
    log_rules(rules, rule_parts(units), outcomes, "times all heads or all channels of a block")
    kept: list[dict[Kind, Tensor]] = [{} for _ in range(blocks)]
    for kind_of_block, keep in zip(units, kept_units(params.solve, method_of(params), units, ranked), strict=True):
        kept[kind_of_block.block][kind_of_block.kind] = keep
    return list(kept)
