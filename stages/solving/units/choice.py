"""Which heads and channels of the whole model stay: their scores, ranked to the budget under the rules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from stages.models.streaming.units import Kind, Units
from stages.params import Params
from stages.solving.rules import tell
from stages.solving.units.checks import method_of
from stages.solving.units.ranking import kept_units, parts_of, ranked_places, rules_of


def choose(params: Params, units: Sequence[Units], scores: Sequence[Tensor], blocks: int) -> list[dict[Kind, Tensor]]:
    """The units (units,) bool of every block that stay, by kind; scores (units,) of each of `units`, higher to keep.

    Raises ParameterError where the budget or a rule cannot be met.
    """
    rules = rules_of(params.solve, units, blocks)
    places = ranked_places(params.solve, units, scores, rules)
    told = ["ranked with the rest" if place.kept is None else f"{place.kept} kept" for place in places]
    tell(rules, parts_of(units), told, "times all heads or all channels of a block")
    kept: list[dict[Kind, Tensor]] = [{} for _ in range(blocks)]
    for one, keep in zip(units, kept_units(params.solve, method_of(params), units, places), strict=True):
        kept[one.block][one.kind] = keep
    return kept
