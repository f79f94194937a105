"""The walk that solves block after block by their plans, on the dense model's inputs or on the pruned model's.

`solve.inputs: dense` solves every block from the stored statistics, in any order. `pruned` (the papers' protocol)
goes in order: each block sees what the pruned blocks before it give. `walk: ordered` does so inside a block too, and
a corrected target runs the dense model beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stages.artifacts.activations import states_shape
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest, verified
from stages.artifacts.places import STATISTICS, block_file
from stages.artifacts.solution import read_rows, write_block
from stages.artifacts.store import key_of
from stages.errors import ParameterError
from stages.models.loading.compute import DTYPES, compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.params import Params
from stages.runtime.blocks.contract import Block
from stages.runtime.clock import Clock
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.runtime.workspace import open_model, same_model
from stages.solving.plan import BlockInputs, BlockPlan, Solved
from stages.walk.ordered import OrderedBlockWalk, Stream
from stages.walk.states import BlockInputStates
from stages.walk.statistics import InputStatistics, collect, read_statistics

WALK_SETTINGS = ("correction", "correction_ridges", "refit_steps", "refit_ridge", "units")
"""Settings of solve, beside a plan's own, that a block's solution follows from."""


@dataclass(frozen=True)
class Job:
    """A model to be pruned and what the stages before left of it.

    identity: of the model's files; dense: the manifest of the dense model's statistics.
    """

    run: StageRun
    model: StreamedModel
    identity: str
    dense: dict[str, Any]

    @classmethod
    def of(cls, run: StageRun) -> Job:
        """The fetched model; raises ArtifactError where the statistics are of another one."""
        model, identity = open_model(run.params.compute)
        dense = read_manifest(STATISTICS)
        same_model(dense, identity, STATISTICS)
        return cls(run, model, identity, dense)

    @property
    def params(self) -> Params:
        """The parameters of the run."""
        return self.run.params

    def statistics(self, index: int) -> list[InputStatistics]:
        """Stored statistics of the inputs of block `index` of the dense model."""
        return read_statistics(verified(STATISTICS, block_file(index), self.dense), self.model.device)


def solve_blocks(job: Job, plans: Sequence[BlockPlan], facts: Mapping[str, Any] | None = None) -> Solved:
    """Solve (or restore) every block by its plan; facts: more for the manifest.

    Raises ParameterError where sequences are to be held out of a single one.
    """
    entering = BlockInputStates(job.model, job.params.compute.chunk)
    _check_held_out(states_shape(entering.dense(0))[0], plans)
    if job.params.solve.inputs == "dense":
        keys, paths = _solve_each(job, plans)
    else:
        keys, paths = _PrunedWalk(job, plans, entering).solve()
    rows = [row for path in paths for row in read_rows(path)]
    return Solved(paths, rows, {**_facts(job, plans), **(facts or {})}, partial(entering.forget, keys))


def block_key(
    plan: BlockPlan, index: int, entering: str, identity: str, params: Params, compute: Mapping[str, Any]
) -> str:
    """Key of a block's solution in the block store: a hash of all that it follows from, source code included.

    entering: what settles the block's inputs: the sum of its stored statistics, or the key of the block before;
    identity: of the model; compute: device, dtype and threads.
    """
    settings = params.solve
    return key_of(
        task="solve", block=index, model=identity, entering=entering,
        plan=plan.facts(),
        statistics=params.statistics.model_dump(),
        solve={**settings.model_dump(mode="json", include=set(WALK_SETTINGS)), "ordered": settings.ordered},
        code=code_of(__name__, *plan.code()),
        **compute,
    )  # fmt: skip


def _check_held_out(sequences: int, plans: Sequence[BlockPlan]) -> None:
    if sequences < 2 and any(plan.corrects or plan.needs_attention for plan in plans):
        raise ParameterError(
            f"calibration.sequences: corrections hold some out: expected at least 2, got {sequences}: use more, "
            "or set solve.target to dense and use no method of the attention matrix, which hold some out too"
        )


def _facts(job: Job, plans: Sequence[BlockPlan]) -> dict[str, Any]:
    """What the solution was made from and with, for its manifest."""
    return {
        "model": job.identity,
        "statistics": identity_of(STATISTICS),
        "calibration": job.dense["calibration"],
        "solve": job.params.solve.model_dump(mode="json"),
        "settings": {name: settings for plan in plans for name, settings in plan.settings().items()},
        "compute": _compute(job),
    }


def _compute(job: Job) -> dict[str, Any]:
    return compute_facts(job.model.device, job.model.dtype, job.params.compute.chunk)


def _solve_each(job: Job, plans: Sequence[BlockPlan]) -> tuple[list[str], list[Path]]:
    """Keys and files of all blocks, each solved from its stored statistics: none needs another."""
    files, compute = job.dense["files"], _compute(job)
    keys = [
        block_key(plan, index, files[block_file(index)], job.identity, job.params, compute)
        for index, plan in enumerate(plans)
    ]
    work = [
        (Block("solve", index, key), partial(_solve_stored, job.params, index, plans[index], job.dense))
        for index, key in enumerate(keys)
    ]
    with progress(total=len(plans), desc=job.params.solve.method, unit="block") as bar:
        return keys, [job.run.note(done) for done in job.run.blocks.each(work, bar.update)]


def _solve_stored(params: Params, index: int, plan: BlockPlan, dense: dict[str, Any], path: Path) -> dict[str, float]:
    """Write the solution of a block from the dense model's statistics, of which `dense` is the manifest."""
    model, _ = open_model(params.compute)
    statistics = read_statistics(verified(STATISTICS, block_file(index), dense), model.device)
    inputs = None
    if plan.needs_attention:
        states = BlockInputStates(model, params.compute.chunk).dense(index)
        inputs = BlockInputs(model, index, states, states)
    clock = Clock()
    write_block(path, *plan.solver(model, params.solve, clock, inputs).solve_all(index, statistics))
    return clock.figures()


class _PrunedWalk:
    """Block after block, each on what the pruned ones before it give.

    Until the first block that pruning changes, the pruned model's inputs are the dense model's: the stored
    statistics do, and the block's key says so.
    """

    def __init__(self, job: Job, plans: Sequence[BlockPlan], entering: BlockInputStates) -> None:
        self.job, self.plans, self.entering = job, plans, entering
        self.keys, self.paths = list[str](), list[Path]()
        self.changed: int | None = None
        self._copies = dict[str, StreamedModel]()

    def solve(self) -> tuple[list[str], list[Path]]:
        """Keys and files of all blocks."""
        job = self.job
        bar = progress(range(len(self.plans)), desc=job.params.solve.method, unit="block")
        for index in bar:
            key = self._key(index)
            path = job.run.note(job.run.blocks.one(Block("solve", index, key), partial(self._write, index)))
            self.keys.append(key)
            self.paths.append(path)
            if self.changed is None and not self.plans[index].leaves_dense:
                self.changed = index
            rows = read_rows(path)
            error = sum(row["relative_error"] for row in rows) / len(rows)
            bar.set_postfix_str(f"relative error {error:.4f}", refresh=False)
        return self.keys, self.paths

    def _key(self, index: int) -> str:
        entering = self.job.dense["files"][block_file(index)] if self.changed is None else self.keys[-1]
        return block_key(self.plans[index], index, entering, self.job.identity, self.job.params, _compute(self.job))

    def _write(self, index: int, path: Path) -> dict[str, float]:
        job, plan, settings = self.job, self.plans[index], self.job.params.solve
        if plan.leaves_dense or (self.changed is None and not settings.ordered):
            return _solve_stored(job.params, index, plan, job.dense, path)
        clock = Clock()
        with clock.timing("calibration", job.model.device):
            states = self.entering.states(index, self.paths, self.keys, self.changed)
        inputs = self._inputs(index, states) if plan.needs_attention else None
        solver = plan.solver(job.model, settings, clock, inputs)
        dtype, chunk = DTYPES[job.params.statistics.dtype], job.params.compute.chunk
        dense = Stream(self._copy("dense"), self.entering.dense(index)) if plan.corrects else None
        if dense is None and not settings.ordered:
            with clock.timing("calibration", job.model.device):
                statistics = collect(job.model, index, states, chunk, dtype)
            write_block(path, *solver.solve_all(index, statistics))
            return clock.figures()
        memory = job.params.workers.held_gb * 1e9
        with OrderedBlockWalk(index, Stream(job.model, states), dense, chunk, dtype, memory) as visit:
            solved = solver.solve_all(index, visit.statistics(), put=settings.ordered)
            if settings.ordered and index + 1 < len(self.plans):
                with clock.timing("calibration", job.model.device):
                    self.entering.keep(index, [*self.keys, self._key(index)], visit.write)
        write_block(path, *solved)
        return clock.figures()

    def _inputs(self, index: int, states: Path) -> BlockInputs:
        return BlockInputs(self._copy("attention"), index, states, self.entering.dense(index))

    def _copy(self, purpose: str) -> StreamedModel:
        """Another instance of the model, which runs while the one that is pruned has the block in memory."""
        if purpose not in self._copies:
            self._copies[purpose] = copy.deepcopy(self.job.model)
        return self._copies[purpose]
