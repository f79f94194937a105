"""Builds UnitProblems: the heads or channels of a block with the statistics, weights and salience that score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.tensorfile import read_tensors
from stages.errors import NotFiniteError
from stages.methods.units.contract import Need, UnitProblem
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Units
from stages.walk.statistics import InputStatistics


def unit_problem(
    model: StreamedModel,
    units: Units,
    statistics: InputStatistics,
    needs: frozenset[Need] = frozenset(),
    salience: Path | None = None,
) -> UnitProblem:
    """The UnitProblem of a block's heads or channels.

    statistics: of the inputs of the linear that reads the units.
    salience:   the block's file of gradient sums (walk/backward.py), for methods that need them.

    Raises NotFiniteError where weights are not finite.
    """
    for linear in (units.sink, *(source for source, _ in units.sources)):
        if not torch.isfinite(model.weights.stored(linear)).all():
            raise NotFiniteError(
                f"block {units.block}: the weights of {linear.name} are not finite: fetch a sound checkpoint"
            )
    dense = model.weights.stored(units.sink).to(statistics.gram)
    sums: Mapping[str, Tensor] = {} if salience is None else read_tensors(salience)
    start = f"{units.kind}."
    return UnitProblem(
        dense,
        statistics.gram,
        statistics.mean,
        statistics.tokens,
        units.columns,
        units.parameters,
        coupled=_coupled_weights(model, units, dense) if "coupled" in needs else None,
        salience={name.removeprefix(start): value for name, value in sums.items() if name.startswith(start)} or None,
        fisher=sums[f"fisher.{units.kind}"].to(dense) if "fisher" in needs else None,
    )


def statistics_of(linear: str, statistics: Sequence[InputStatistics]) -> InputStatistics:
    """The statistics of a linear's inputs, among those of its block."""
    return next(shared for shared in statistics if linear in shared.linears)


def _coupled_weights(model: StreamedModel, units: Units, dense: Tensor) -> Tensor:
    """All weights of each unit (units, weights of each): its rows of the sources, then its columns of the sink."""
    parts = [model.weights.stored(linear).to(dense)[rows].flatten(1) for linear, rows in units.sources]
    return torch.cat([*parts, dense.T[units.columns].flatten(1)], 1)
