"""Masks and refitted weights of every block -> data/solution.

`solve.inputs: dense` solves every block from the stored statistics. `pruned` (the papers' protocol)
walks the blocks in order: each sees what the pruned blocks before it give, and its statistics are taken
on the way. `walk: ordered` does so inside a block too, `target: corrected` runs the dense model beside it.
Solved blocks are kept in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import copy
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

from stages import methods
from stages.allocation import allocate
from stages.artifacts.activations import states_shape
from stages.artifacts.atomic import link_or_copy
from stages.artifacts.calibration import rank_shortfall
from stages.artifacts.code import code_of
from stages.artifacts.linears import TABLE, write_table
from stages.artifacts.manifest import identity_of, read_manifest, verified, write_manifest
from stages.artifacts.store import key_of, trim
from stages.assignment import assign
from stages.attending import Attending
from stages.blocks.contract import Block
from stages.choosing import choose, method_of, trained
from stages.clock import Clock
from stages.entering import Entering
from stages.errors import ParameterError
from stages.gate_folding import folded
from stages.models.compute import DTYPES, compute_facts
from stages.models.streamed import StreamedModel
from stages.params import Params
from stages.places import SOLUTION, STATISTICS, block_file
from stages.planning import LinearPlan, Plan, TrainedPlan, UnitPlan
from stages.runner import StageRun, parser_of, progress, run_stage
from stages.slicing import solve_sliced
from stages.solution import read_rows, write_block
from stages.trained import Trained
from stages.visit import BlockVisit, Stream
from stages.walk import InputStatistics, collect
from stages.workspace import open_model, read_statistics, same_model

SECTIONS = ("compute", "statistics", "solve", "methods")
WALK_SETTINGS = ("correction", "correction_ridges", "refit_steps", "refit_ridge", "units")
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write one file a block, the table of linears and the manifest."""
    if methods.room_of(run.params.solve.method) == "rotations":
        solve_sliced(run)
        return
    walk = _Walk(run)
    short = rank_shortfall(walk.dense["calibration"])
    if short:
        log.warning(short)
    if run.params.solve.inputs == "dense":
        walk.solve_each()
    else:
        walk.solve_in_order()
    with run.output(SOLUTION) as folder:
        for index, path in enumerate(walk.solutions):
            link_or_copy(path, folder / block_file(index))
        write_table(folder / TABLE, [row for path in walk.solutions for row in read_rows(path)])
        write_manifest(folder, walk.facts())
    walk.entering.forget(walk.keys)
    trim(run.params.store.limit_gb * 1e9)


class _Walk:
    """The walk over the blocks, as far as it has come."""

    def __init__(self, run: StageRun) -> None:
        self.run, self.params = run, run.params
        self.model, self.identity = open_model(run.params.compute)
        self.dense = read_manifest(STATISTICS)
        same_model(self.dense, self.identity, STATISTICS)
        self.gates: Trained | None = None
        self.plans = self._plans()
        self.entering = Entering(self.model, run.params.compute.chunk)
        self._check_held_out()
        self.keys, self.solutions = list[str](), list[Path]()
        self.changed: int | None = None
        self._dense_model: StreamedModel | None = None
        self._asked_model: StreamedModel | None = None

    def solve_each(self) -> None:
        """Solve (or restore) all blocks from the stored statistics: none needs another."""
        self.keys = [self._key(index) for index in range(self.model.blocks)]
        work = [
            (
                Block("solve", index, key),
                partial(_solve_stored, self.params, index, self.plans[index], self.dense),
            )
            for index, key in enumerate(self.keys)
        ]
        with progress(total=self.model.blocks, desc=self.params.solve.method, unit="block") as bar:
            self.solutions = [self.run.note(done) for done in self.run.blocks.each(work, bar.update)]

    def solve_in_order(self) -> None:
        """Solve (or restore) block after block, each with what the pruned ones before it give."""
        bar = progress(range(self.model.blocks), desc=self.params.solve.method, unit="block")
        for index in bar:
            key = self._key(index)
            path = self.run.note(self.run.blocks.one(Block("solve", index, key), partial(self._write, index)))
            self.keys.append(key)
            self.solutions.append(path)
            if self.changed is None and not self.plans[index].leaves_dense:
                self.changed = index
            rows = read_rows(path)
            error = sum(row["relative_error"] for row in rows) / len(rows)
            bar.set_postfix_str(f"relative error {error:.4f}", refresh=False)

    def _check_held_out(self) -> None:
        """Raise ParameterError where sequences are to be held out of a single one."""
        sequences = states_shape(self.entering.dense(0))[0]
        if sequences < 2 and any(plan.corrects or plan.joint for plan in self.plans):
            raise ParameterError(
                f"calibration.sequences: corrections hold some out: expected at least 2, got {sequences}: use more, "
                "or set solve.target to dense and use no method of the attention matrix, which hold some out too"
            )

    def facts(self) -> dict[str, Any]:
        """What the solution was made from and with, for its manifest."""
        used = {name: settings for plan in self.plans for name, settings in plan.settings().items()}
        return {
            "model": self.identity,
            "statistics": identity_of(STATISTICS),
            "calibration": self.dense["calibration"],
            "solve": self.params.solve.model_dump(mode="json"),
            "settings": used,
            "compute": compute_facts(self.model.device, self.model.dtype, self.params.compute.chunk),
            **({} if self.gates is None else {"training": self.gates.facts}),
        }

    def _plans(self) -> list[Plan]:
        """What is to be done to each block."""
        settings, blocks = self.params.solve, range(self.model.blocks)
        if not methods.removes_units(settings.method):
            found = allocate(assign(self.params, self.model), settings, self.model, self._stored)
            return [LinearPlan({one.name: found[one.name] for one in self.model.linears(index)}) for index in blocks]
        method, own = method_of(self.params), self.params.methods.get(settings.method, {})
        how = method.compensation if settings.units.compensation == "auto" else settings.units.compensation
        corrects = settings.corrects(how in ("weights", "affine"))
        self.gates = gates = trained(self.run, self.model, self.identity)
        kept = choose(self.run, self.model, self.identity, self.dense, gates)
        if gates is not None and (gates.weights or how == "none"):
            self.gates = gates = folded(self.run, self.model, gates, kept)
            return [TrainedPlan(index, settings.method, method, own, kept[index], gates) for index in blocks]
        return [UnitPlan(settings.method, method, own, kept[index], corrects) for index in blocks]

    def _stored(self, index: int) -> list[InputStatistics]:
        return read_statistics(verified(STATISTICS, block_file(index), self.dense), self.model.device)

    def _write(self, index: int, path: Path) -> dict[str, float]:
        if self._sees_dense(index):
            return _solve_stored(self.params, index, self.plans[index], self.dense, path)
        clock = Clock()
        with clock.timing("calibration", self.model.device):
            states = self.entering.states(index, self.solutions, self.keys, self.changed)
        attending = self._attending(index, states)
        solver = self.plans[index].solver(self.model, self.params.solve, clock, attending)
        dtype, compute, settings = DTYPES[self.params.statistics.dtype], self.params.compute, self.params.solve
        dense = self._dense_stream(index)
        if dense is None and not settings.ordered:
            with clock.timing("calibration", self.model.device):
                statistics = collect(self.model, index, states, compute.chunk, dtype)
            write_block(path, *solver.solve_all(index, statistics))
            return clock.figures()
        memory = self.params.workers.held_gb * 1e9
        with BlockVisit(index, Stream(self.model, states), dense, compute.chunk, dtype, memory) as visit:
            solved = solver.solve_all(index, visit.statistics(), put=settings.ordered)
            if settings.ordered and index + 1 < self.model.blocks:
                with clock.timing("calibration", self.model.device):
                    self.entering.keep(index, [*self.keys, self._key(index)], visit.write)
        write_block(path, *solved)
        return clock.figures()

    def _attending(self, index: int, states: Path) -> Attending | None:
        """What enters the block's attention, with another model, as ours runs while linears are solved."""
        if not self.plans[index].joint:
            return None
        if self._asked_model is None:
            self._asked_model = copy.deepcopy(self.model)
        return Attending(self._asked_model, index, states, self.entering.dense(index))

    def _dense_stream(self, index: int) -> Stream | None:
        """The dense model, a copy that runs beside the one that is pruned, and what enters its block."""
        if not self.plans[index].corrects:
            return None
        if self._dense_model is None:
            self._dense_model = copy.deepcopy(self.model)
        return Stream(self._dense_model, self.entering.dense(index))

    def _sees_dense(self, index: int) -> bool:
        """Whether the stored statistics will do: no linear before the block's is pruned, or none of them will be."""
        unchanged = self.changed is None and not self.params.solve.ordered
        return self.plans[index].leaves_dense or unchanged or self.params.solve.inputs == "dense"

    def _key(self, index: int) -> str:
        plan, settings = self.plans[index], self.params.solve
        unchanged = self.params.solve.inputs == "dense" or self.changed is None
        entering = self.dense["files"][block_file(index)] if unchanged else self.keys[-1]
        return key_of(
            task="solve", block=index, model=self.identity, entering=entering,
            plan=plan.facts(),
            statistics=self.params.statistics.model_dump(),
            solve={**settings.model_dump(mode="json", include=set(WALK_SETTINGS)), "ordered": settings.ordered},
            code=code_of(_solve_stored, *plan.code()),
            **compute_facts(self.model.device, self.model.dtype, self.params.compute.chunk),
        )  # fmt: skip


def _solve_stored(params: Params, index: int, plan: Plan, manifest: dict[str, Any], path: Path) -> dict[str, float]:
    """Solve a block from the dense model's statistics; `manifest` is theirs."""
    model, _ = open_model(params.compute)
    statistics = read_statistics(verified(STATISTICS, block_file(index), manifest), model.device)
    attending = None
    if plan.joint:
        states = Entering(model, params.compute.chunk).dense(index)
        attending = Attending(model, index, states, states)
    clock = Clock()
    write_block(path, *plan.solver(model, params.solve, clock, attending).solve_all(index, statistics))
    return clock.figures()


if __name__ == "__main__":
    parser = parser_of("solve", __doc__)
    parser.add_argument("--list", action="store_true", help="list the methods and their papers, and stop")
    if parser.parse_args().list:
        print(methods.described())
        sys.exit(0)
    sys.exit(run_stage("solve", main, SECTIONS, blockwise=True))
