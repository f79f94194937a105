"""The units of a block as problems: what is known of the linears that read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.tensorfile import read_tensors
from stages.errors import NotFiniteError
from stages.methods.units.contract import Need, UnitProblem
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Units, parameters_of
from stages.walk.statistics import InputStatistics


def unit_problem(
    model: StreamedModel,
    units: Units,
    statistics: InputStatistics,
    needs: frozenset[Need] = frozenset(),
    backward: Path | None = None,
) -> UnitProblem:
    """The problem of one kind of units; `statistics` of its sink's inputs.

    backward: file of what the walk backwards left of the block, where `needs` asks for it.

    Raises NotFiniteError where weights are not finite.
    """
    for linear in (units.sink, *(source for source, _ in units.sources)):
        if not torch.isfinite(model.weights.stored(linear)).all():
            raise NotFiniteError(
                f"block {units.block}: the weights of {linear.name} are not finite: fetch a sound checkpoint"
            )
    dense = model.weights.stored(units.sink).to(statistics.gram)
    left = {} if backward is None else read_tensors(backward)
    start = f"{units.kind}."
    return UnitProblem(
        dense,
        statistics.gram,
        statistics.mean,
        statistics.tokens,
        units.columns,
        units.parameters,
        coupled=_coupled(model, units, dense) if "coupled" in needs else None,
        salience={name.removeprefix(start): value for name, value in left.items() if name.startswith(start)} or None,
        fisher=left[f"fisher.{units.kind}"].to(dense) if "fisher" in needs else None,
    )


def statistics_of(sink: str, found: Sequence[InputStatistics]) -> InputStatistics:
    """Those of a linear's inputs."""
    return next(one for one in found if sink in one.linears)


def parameters_to_remove(units: Sequence[Units], sparsity: float) -> int:
    """How many of all units' parameters are to go."""
    return math.ceil(sparsity * parameters_of(units))


def _coupled(model: StreamedModel, units: Units, dense: Tensor) -> Tensor:
    parts = [model.weights.stored(linear).to(dense)[rows].flatten(1) for linear, rows in units.sources]
    return torch.cat([*parts, dense.T[units.columns].flatten(1)], 1)
