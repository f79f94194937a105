"""Scores of heads and channels by the method, from stored statistics and, where it needs them, gradient sums."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from stages.artifacts.code import code_of
from stages.artifacts.manifest import verified
from stages.artifacts.places import STATISTICS, block_file
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.errors import NotPositiveDefiniteError
from stages.methods import registry
from stages.methods.units.contract import UnitScorer
from stages.models.loading.compute import compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
from stages.params import Params
from stages.runtime.blocks.contract import Block
from stages.runtime.cost import BlockCost
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.runtime.workspace import open_model
from stages.solving.units.checks import method_of
from stages.solving.units.problem import statistics_of, unit_problem
from stages.walk.backward import Backward
from stages.walk.statistics import read_statistics


def unit_scores(
    run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any]
) -> list[dict[str, Tensor]]:
    """Scores (units,) of every block's heads and channels, by kind, made or restored from the block store.

    identity: of the model; statistics: the manifest of data/statistics.
    """
    method = run.params.solve.method
    needs_gradients = bool(method_of(run.params).needs - {"coupled"})
    saliences = block_saliences(run, model, identity) if needs_gradients else [None] * model.blocks
    facts = {
        "model": identity,
        "method": method,
        "settings": run.params.methods.get(method, {}),
        "code": code_of(_write_scores, *registry.modules_of(method, method_of(run.params))),
        **compute_facts(model.device, model.dtype, run.params.compute.chunk),
    }
    work = []
    for index, salience in enumerate(saliences):
        inputs = statistics["files"][block_file(index)], None if salience is None else salience.name
        key = key_of(task="scores", block=index, entering=inputs, **facts)
        write = partial(_write_scores, run.params, index, dict(statistics), salience)
        work.append((Block("scores", index, key), write))
    with progress(total=model.blocks, desc="scores", unit="block") as bar:
        return [read_tensors(path) for path in run.run_blocks(work, bar.update)]


def block_saliences(run: StageRun, model: StreamedModel, identity: str) -> list[Path]:
    """Every block's file of gradient sums (see walk/backward.py), made last block first, or restored."""
    walk = Backward(model, identity, run.params.compute.chunk)
    order = progress(reversed(range(model.blocks)), desc="gradients", unit="block", total=model.blocks)
    paths = [run.run_block(Block("salience", index, walk.key(index)), partial(walk.write, index)) for index in order]
    walk.forget()
    return paths[::-1]


def _write_scores(
    params: Params, index: int, statistics: dict[str, Any], salience: Path | None, path: Path
) -> dict[str, float]:
    """Write the scores of block `index`; gives the seconds they took. Picklable, for workers."""
    model, _ = open_model(params.compute)
    inputs = read_statistics(verified(STATISTICS, block_file(index), statistics), model.device)
    scorer, cost, scores = cast(UnitScorer, method_of(params)), BlockCost(), dict[str, Tensor]()
    for units in units_of(model, index):
        problem = unit_problem(model, units, statistics_of(units.sink.name, inputs), scorer.needs, salience)
        try:
            with cost.timing("solver", model.device):
                scores[units.kind] = scorer(problem).cpu()
        except NotPositiveDefiniteError as fault:
            raise NotPositiveDefiniteError(f"block {index}, {units.sink.name}: {fault}") from None
    write_tensors(path, scores)
    return {"solver_seconds": cost.solver_seconds, "solver_cpu_seconds": cost.solver_cpu_seconds}
