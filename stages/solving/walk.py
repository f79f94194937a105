"""Solves block after block by their plans, calibrated on the dense model's inputs or on the pruned model's.

`solve.inputs: dense` solves every block from the stored statistics, in any order. `pruned` (the papers' protocol)
goes in order: the inputs of a block are what the pruned blocks before it give. `walk: ordered` does the same inside a
block, linear after linear, and a corrected target runs the dense model in step with the pruned one.
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
from stages.artifacts.solution import BlockSolution, read_rows, write_block
from stages.artifacts.store import key_of
from stages.errors import ParameterError
from stages.models.loading.compute import DTYPES, compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.params import Params
from stages.runtime.blocks.contract import Block
from stages.runtime.cost import BlockCost
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.runtime.workspace import open_model, same_model
from stages.solving.plan import BlockInputs, BlockPlan, BlockSolver, Solved
from stages.walk.ordered import OrderedBlockWalk, Stream
from stages.walk.states import BlockInputStates
from stages.walk.statistics import InputStatistics, collect, read_statistics

WALK_SETTINGS = ("correction", "correction_ridges", "refit_steps", "refit_ridge", "units")
"""Settings of solve, beside those in a block's plan, that its solution follows from."""


@dataclass(frozen=True)
class Job:
    """A model to be pruned, with the statistics of its dense blocks.

    identity: hash of the model's files; dense: manifest of data/statistics.
    """

    run: StageRun
    model: StreamedModel
    identity: str
    dense: dict[str, Any]

    @classmethod
    def open(cls, run: StageRun) -> Job:
        """Open data/model and data/statistics; raises ArtifactError where the statistics are of another model."""
        model, identity = open_model(run.params.compute)
        dense = read_manifest(STATISTICS)
        same_model(dense, identity, STATISTICS)
        return cls(run, model, identity, dense)

    @property
    def params(self) -> Params:
        """The parameters of the run."""
        return self.run.params

    def statistics(self, index: int) -> list[InputStatistics]:
        """Stored statistics of the inputs of dense block `index`."""
        return read_statistics(verified(STATISTICS, block_file(index), self.dense), self.model.device)

    def compute_facts(self) -> dict[str, Any]:
        """Device, dtype, threads and library versions: part of every key and manifest."""
        return compute_facts(self.model.device, self.model.dtype, self.params.compute.chunk)

    def key(self, plan: BlockPlan, index: int, inputs: str) -> str:
        """Key of the solution of block `index` in the block store; see `block_key`."""
        return block_key(plan, index, inputs, self.identity, self.params, self.compute_facts())


def solve_blocks(job: Job, plans: Sequence[BlockPlan], facts: Mapping[str, Any] | None = None) -> Solved:
    """Solve every block by its plan, or restore it from the block store. facts: additions to the manifest.

    Raises ParameterError where sequences are to be held out and there is only one.
    """
    states = BlockInputStates(job.model, job.params.compute.chunk)
    _check_sequences(states_shape(states.dense(0))[0], plans)
    if job.params.solve.inputs == "dense":
        keys, paths = _solve_on_dense_inputs(job, plans)
    else:
        keys, paths = _PrunedWalk(job, plans, states).solve()
    rows = [row for path in paths for row in read_rows(path)]
    return Solved(paths, rows, {**_manifest_facts(job, plans), **(facts or {})}, partial(states.forget, keys))


def block_key(
    plan: BlockPlan, index: int, inputs: str, identity: str, params: Params, compute: Mapping[str, Any]
) -> str:
    """Key of a block's solution in the block store: a hash of everything it follows from, source code included.

    inputs:   what determines the block's inputs: the hash of its stored statistics, or the key of the block before.
    identity: of the model. compute: device, dtype and threads.
    """
    settings = params.solve
    return key_of(
        task="solve", block=index, model=identity, entering=inputs,
        plan=plan.facts(),
        statistics=params.statistics.model_dump(),
        solve={**settings.model_dump(mode="json", include=set(WALK_SETTINGS)), "ordered": settings.ordered},
        code=code_of(__name__, *plan.code()),
        **compute,
    )  # fmt: skip


def _check_sequences(sequences: int, plans: Sequence[BlockPlan]) -> None:
    """Raise ParameterError where a plan holds sequences out and there are fewer than two."""
    if sequences < 2 and any(plan.corrects or plan.needs_attention for plan in plans):
        raise ParameterError(
            f"calibration.sequences: corrections hold some out: expected at least 2, got {sequences}: use more, "
            "or set solve.target to dense and use no method of the attention matrix, which hold some out too"
        )


def _manifest_facts(job: Job, plans: Sequence[BlockPlan]) -> dict[str, Any]:
    """What the solution was made from and with, for its manifest."""
    return {
        "model": job.identity,
        "statistics": identity_of(STATISTICS),
        "calibration": job.dense["calibration"],
        "solve": job.params.solve.model_dump(mode="json"),
        "settings": {name: settings for plan in plans for name, settings in plan.settings().items()},
        "compute": job.compute_facts(),
    }


def _solve_on_dense_inputs(job: Job, plans: Sequence[BlockPlan]) -> tuple[list[str], list[Path]]:
    """Keys and files of all blocks, each solved from its stored statistics, in parallel where workers are given."""
    files = job.dense["files"]
    keys = [job.key(plan, index, files[block_file(index)]) for index, plan in enumerate(plans)]
    work = [
        (Block("solve", index, key), partial(_write_from_statistics, job.params, index, plans[index], job.dense))
        for index, key in enumerate(keys)
    ]
    with progress(total=len(plans), desc=job.params.solve.method, unit="block") as bar:
        return keys, job.run.run_blocks(work, bar.update)


def _write_from_statistics(
    params: Params, index: int, plan: BlockPlan, dense: dict[str, Any], path: Path
) -> dict[str, float]:
    """Write the solution of block `index` from its stored statistics; gives its seconds. Picklable, for workers.

    dense: manifest of data/statistics.
    """
    model, _ = open_model(params.compute)
    statistics = read_statistics(verified(STATISTICS, block_file(index), dense), model.device)
    inputs = None
    if plan.needs_attention:
        states = BlockInputStates(model, params.compute.chunk).dense(index)
        inputs = BlockInputs(model, index, states, states)
    cost = BlockCost()
    write_block(path, *plan.solver(model, params.solve, cost, inputs).solve_all(index, statistics))
    return cost.figures()


class _PrunedWalk:
    """Solves block after block, each on the hidden states that the pruned blocks before it give.

    Until the first block that pruning changes (`first_changed`), the pruned model's inputs are the dense model's: its
    stored statistics are used, and the block's key says so.
    """

    def __init__(self, job: Job, plans: Sequence[BlockPlan], states: BlockInputStates) -> None:
        self.job, self.plans, self.states = job, plans, states
        self.keys, self.paths = list[str](), list[Path]()
        self.first_changed: int | None = None
        self._copies = dict[str, StreamedModel]()

    def solve(self) -> tuple[list[str], list[Path]]:
        """Keys and files of all blocks."""
        job = self.job
        bar = progress(range(len(self.plans)), desc=job.params.solve.method, unit="block")
        for index in bar:
            key = self._key(index)
            path = job.run.run_block(Block("solve", index, key), partial(self._write, index))
            self.keys.append(key)
            self.paths.append(path)
            if self.first_changed is None and not self.plans[index].leaves_dense:
                self.first_changed = index
            rows = read_rows(path)
            error = sum(row["relative_error"] for row in rows) / len(rows)
            bar.set_postfix_str(f"relative error {error:.4f}", refresh=False)
        return self.keys, self.paths

    def _key(self, index: int) -> str:
        inputs = self.job.dense["files"][block_file(index)] if self.first_changed is None else self.keys[-1]
        return self.job.key(self.plans[index], index, inputs)

    def _write(self, index: int, path: Path) -> dict[str, float]:
        """Write the solution of block `index`; gives its seconds."""
        job, plan, settings = self.job, self.plans[index], self.job.params.solve
        if plan.leaves_dense or (self.first_changed is None and not settings.ordered):
            return _write_from_statistics(job.params, index, plan, job.dense, path)
        cost = BlockCost()
        with cost.timing("calibration", job.model.device):
            states = self.states.states(index, self.paths, self.keys, self.first_changed)
        solver = plan.solver(job.model, settings, cost, self._attention_inputs(index, states))
        if plan.corrects or settings.ordered:
            solution = self._solve_in_steps(index, states, solver, cost)
        else:
            with cost.timing("calibration", job.model.device):
                dtype = DTYPES[job.params.statistics.dtype]
                statistics = collect(job.model, index, states, job.params.compute.chunk, dtype)
            solution = solver.solve_all(index, statistics)
        write_block(path, *solution)
        return cost.figures()

    def _solve_in_steps(self, index: int, states: Path, solver: BlockSolver, cost: BlockCost) -> BlockSolution:
        """Solve a block on one forward that stops before each group of linears, the dense block beside it if asked.

        In the ordered walk solved weights are put into the block as it runs, and what leaves it is stored.
        """
        job, params = self.job, self.job.params
        dense = Stream(self._copy("dense"), self.states.dense(index)) if self.plans[index].corrects else None
        dtype, memory = DTYPES[params.statistics.dtype], params.workers.held_gb * 1e9
        pruned, ordered = Stream(job.model, states), params.solve.ordered
        with OrderedBlockWalk(index, pruned, dense, params.compute.chunk, dtype, memory) as walk:
            solution = solver.solve_all(index, walk.statistics(), put=ordered)
            if ordered and index + 1 < len(self.plans):
                with cost.timing("calibration", job.model.device):
                    self.states.keep(index, [*self.keys, self._key(index)], walk.write)
        return solution

    def _attention_inputs(self, index: int, states: Path) -> BlockInputs | None:
        if not self.plans[index].needs_attention:
            return None
        return BlockInputs(self._copy("attention"), index, states, self.states.dense(index))

    def _copy(self, purpose: str) -> StreamedModel:
        """Another instance of the model, which runs while the one that is pruned has the block in memory."""
        if purpose not in self._copies:
            self._copies[purpose] = copy.deepcopy(self.job.model)
        return self._copies[purpose]
