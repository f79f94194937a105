"""Ranking of units over the whole model: those with the lowest scores go until the parameter budget is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.errors import ParameterError


@dataclass(frozen=True)
class RankedUnits:
    """The heads or the channels of one block, as they compete with those of other blocks.

    scores:     (units,), higher for those more worth keeping.
    parameters: of each unit.
    kept:       how many stay, where that is settled; None where they compete.
    multiple:   units go in such numbers that what stays is a multiple of it.
    """

    scores: Tensor
    parameters: int
    kept: int | None = None
    multiple: int = 1


@dataclass(frozen=True)
class _Piece:
    """Units of one place that go together; `rank` orders the pieces of a place, lowest scores first."""

    place: int
    rank: int
    units: int
    parameters: int
    score: float


def keep_to_budget(places: Sequence[RankedUnits], removed: int) -> list[Tensor]:
    """Masks (units,) bool of each place such that at least `removed` parameters go, and hardly more.

    The lowest score of all goes first; a unit larger than what is still to go is passed over, unless nothing smaller
    is left: the budget is missed by less than the smallest unit while one of those is left to go. Every place keeps at
    least one unit (one multiple).

    places: the heads or the channels of one block each. Raises ParameterError where what may go is not enough.
    """
    counts = [_settled(place) for place in places]
    short = removed - sum(_gone(place, kept) for place, kept in zip(places, counts, strict=True))
    pieces = sorted(_pieces(places), key=lambda piece: (piece.score, piece.place, piece.rank))
    able = sum(piece.parameters for piece in pieces)
    smallest = min((piece.parameters for piece in pieces), default=0)
    if short > able:
        total = sum(len(place.scores) * place.parameters for place in places)
        raise ParameterError(
            f"solve.sparsity: {removed / total:.4f} of the units' parameters are to go, at most "
            f"{(removed - short + able) / total:.4f} can, because every block keeps one head and one channel and what "
            "solve.rules protect: lower solve.sparsity, or protect less"
        )
    stopped, passed = set[int](), list[_Piece]()
    for piece in pieces:
        if short <= 0:
            break
        if piece.place in stopped:
            continue
        if piece.parameters > max(short, smallest):
            # A place's units go in the order of their scores: where the next is too large, none after it may go.
            stopped.add(piece.place)
            passed.append(piece)
            continue
        counts[piece.place] -= piece.units
        short -= piece.parameters
    for piece in sorted(passed, key=lambda each: each.parameters):
        if short <= 0:
            break
        counts[piece.place] -= piece.units
        short -= piece.parameters
    return [keep_best(place.scores, kept) for place, kept in zip(places, counts, strict=True)]


def keep_above_threshold(places: Sequence[RankedUnits], fraction: float, factors: Sequence[float]) -> list[Tensor]:
    """Masks (units,) bool by eq. 8 of numerical pruning as written: scaled scores, a threshold by the COUNT of units.

    fraction: of all units that go. factors: of each place, α = 4 d/3 for heads, d their inputs of o, 1 for channels,
    which all but spares the heads.
    """
    settled = [place.kept is not None for place in places]
    together = [place.scores * factor for place, factor in zip(places, factors, strict=True)]
    competing = [scores for scores, fixed in zip(together, settled, strict=True) if not fixed]
    if not competing:
        return [keep_best(place.scores, _settled(place)) for place in places]
    ordered = torch.cat(competing).sort().values
    gone = min(int(fraction * len(ordered)), len(ordered) - 1)
    threshold = ordered[gone]
    return [
        keep_best(place.scores, _settled(place) if fixed else max(1, int((scores >= threshold).sum())))
        for place, scores, fixed in zip(places, together, settled, strict=True)
    ]


def keep_best(scores: Tensor, kept: int) -> Tensor:
    """Mask (units,) bool of the `kept` highest scores, the first among equals."""
    keep = torch.zeros(len(scores), dtype=torch.bool)
    keep[scores.argsort(descending=True, stable=True)[:kept].cpu()] = True
    return keep


def _settled(place: RankedUnits) -> int:
    """How many units of a place stay before any ranking."""
    return len(place.scores) if place.kept is None else place.kept


def _gone(place: RankedUnits, kept: int) -> int:
    """Parameters that go from a place which keeps `kept` units."""
    return (len(place.scores) - kept) * place.parameters


def _pieces(places: Sequence[RankedUnits]) -> list[_Piece]:
    """All that can go, place by place from its lowest score: single units, or as many as leave a multiple."""
    pieces = []
    for number, place in enumerate(places):
        if place.kept is not None:
            continue
        ordered = place.scores.double().sort().values.tolist()
        width, done = len(ordered), 0
        step = width % place.multiple or place.multiple
        while width - done - step >= place.multiple:
            score = sum(ordered[done : done + step]) / step
            pieces.append(_Piece(number, done, step, step * place.parameters, score))
            done, step = done + step, place.multiple
    return pieces
