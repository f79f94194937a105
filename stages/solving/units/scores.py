"""Scores of every block's heads and channels, from stored statistics and, where a method asks, gradients."""

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
from stages.runtime.clock import Clock
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.runtime.workspace import open_model
from stages.solving.units.checks import method_of
from stages.solving.units.problem import statistics_of, unit_problem
from stages.walk.backward import Backward
from stages.walk.statistics import read_statistics


def block_saliences(run: StageRun, model: StreamedModel, identity: str) -> list[Path]:
    """The file of every block (see `read_salience`), made or restored from the block store."""
    walk = Backward(model, identity, run.params.compute.chunk)
    order = progress(reversed(range(model.blocks)), desc="gradients", unit="block", total=model.blocks)
    found = [
        run.note(run.blocks.one(Block("salience", index, walk.key(index)), partial(walk.write, index)))
        for index in order
    ]
    walk.forget()
    return found[::-1]


def unit_scores(
    run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any]
) -> list[dict[str, Tensor]]:
    """Scores of every block's units by kind, made or restored from the block store."""
    method = run.params.solve.method
    walks_back = bool(method_of(run.params).needs - {"coupled"})
    left = block_saliences(run, model, identity) if walks_back else [None] * model.blocks
    facts = {
        "model": identity,
        "method": method,
        "settings": run.params.methods.get(method, {}),
        "code": code_of(_write_scores, *registry.modules_of(method, method_of(run.params))),
        **compute_facts(model.device, model.dtype, run.params.compute.chunk),
    }
    work = []
    for index, path in enumerate(left):
        entering = statistics["files"][block_file(index)], None if path is None else path.name
        key = key_of(task="scores", block=index, entering=entering, **facts)
        work.append((Block("scores", index, key), partial(_write_scores, run.params, index, dict(statistics), path)))
    with progress(total=model.blocks, desc="scores", unit="block") as bar:
        return [read_tensors(run.note(done)) for done in run.blocks.each(work, bar.update)]


def _write_scores(
    params: Params, index: int, statistics: dict[str, Any], backward: Path | None, path: Path
) -> dict[str, float]:
    model, _ = open_model(params.compute)
    found = read_statistics(verified(STATISTICS, block_file(index), statistics), model.device)
    scorer, clock, scores = cast(UnitScorer, method_of(params)), Clock(), dict[str, Tensor]()
    for units in units_of(model, index):
        problem = unit_problem(model, units, statistics_of(units.sink.name, found), scorer.needs, backward)
        try:
            with clock.timing("solver", model.device):
                scores[units.kind] = scorer(problem).cpu()
        except NotPositiveDefiniteError as fault:
            raise NotPositiveDefiniteError(f"block {index}, {units.sink.name}: {fault}") from None
    write_tensors(path, scores)
    return {"solver_seconds": clock.solver_seconds, "solver_cpu_seconds": clock.solver_cpu_seconds}
