"""Masks and refitted weights of every block -> data/solution.

`solve.inputs: dense` solves every block from the stored statistics. `pruned` (the papers' protocol)
walks the blocks in order: each sees what the pruned blocks before it give, and its statistics are taken
on the way. Solved blocks are kept in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

from stages import solvers
from stages.artifacts.atomic import link_or_copy
from stages.artifacts.linears import TABLE, write_table
from stages.artifacts.manifest import identity_of, read_manifest, verified, write_manifest
from stages.artifacts.store import BlockStore, key_of, trim
from stages.assignment import Assignment, assign
from stages.entering import Entering
from stages.models.compute import DTYPES
from stages.models.streamed import StreamedModel
from stages.params import Params
from stages.places import SOLUTION, STATISTICS, block_file
from stages.runner import StageRun, parser_of, progress, run_stage
from stages.solution import read_rows, write_block
from stages.solvers import registry
from stages.solving import Clock, solve_block
from stages.walk import InputStatistics, collect
from stages.workspace import code_of, compute_facts, open_model, read_statistics, same_model

SECTIONS = ("compute", "statistics", "solve", "methods")
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write one file a block, the table of linears and the manifest."""
    model, identity = open_model(run.params.compute)
    walk = _Walk(run.params, model, identity)
    bar = progress(range(model.blocks), desc=run.params.solve.method, unit="block")
    for index in bar:
        rows = walk.solve(index)
        error = sum(row["relative_error"] for row in rows) / len(rows)
        bar.set_postfix_str(f"relative error {error:.4f}", refresh=False)
    with run.output(SOLUTION) as folder:
        for index, path in enumerate(walk.solutions):
            link_or_copy(path, folder / block_file(index))
        write_table(folder / TABLE, [row for path in walk.solutions for row in read_rows(path)])
        write_manifest(folder, walk.facts())
    walk.entering.forget(walk.keys)
    run.figures.update(walk.clock.figures())
    trim(run.params.store.limit_gb * 1e9)


class _Walk:
    """The walk over the blocks, as far as it has come."""

    def __init__(self, params: Params, model: StreamedModel, identity: str) -> None:
        self.params, self.model, self.identity = params, model, identity
        self.dense = read_manifest(STATISTICS)
        same_model(self.dense, identity, STATISTICS)
        self.assignments = assign(params, model)
        self.entering, self.clock = Entering(model, params.compute.chunk), Clock()
        self.store, self.keys, self.solutions = BlockStore("solve"), list[str](), list[Path]()
        self.changed: int | None = None

    def solve(self, index: int) -> list[dict[str, Any]]:
        """Solve or restore the next block and give its rows."""
        key = self._key(index)
        path = self.store.find(key)
        if path is None:
            path = self.store.make(key, partial(self._write, index))
            self.clock.solved += 1
        else:
            self.clock.restored += 1
        self.keys.append(key)
        self.solutions.append(path)
        if self.changed is None and not all(one.leaves_dense for one in self._of(index).values()):
            self.changed = index
        return read_rows(path)

    def facts(self) -> dict[str, Any]:
        """What the solution was made from and with, for its manifest."""
        used = {one.method: one.facts()["solver"] for one in self.assignments.values()}
        return {
            "model": self.identity,
            "statistics": identity_of(STATISTICS),
            "calibration": self.dense["calibration"],
            "solve": self.params.solve.model_dump(mode="json"),
            "settings": used,
            "compute": compute_facts(self.model, self.params.compute.chunk),
        }

    def _write(self, index: int, path: Path) -> None:
        assignments = self._of(index)
        write_block(path, solve_block(self.model, index, assignments, self._statistics(index), self.clock))

    def _statistics(self, index: int) -> list[InputStatistics]:
        """Of the dense model, as stored, or of the model as pruned so far."""
        if self._sees_dense():
            stored = verified(STATISTICS, block_file(index), self.dense)
            return read_statistics(stored, self.model.device)
        states = self.entering.states(index, self.solutions, self.keys, self.changed)
        dtype = DTYPES[self.params.statistics.dtype]
        return collect(self.model, index, states, self.params.compute.chunk, dtype)

    def _sees_dense(self) -> bool:
        return self.params.solve.inputs == "dense" or self.changed is None

    def _key(self, index: int) -> str:
        assignments = self._of(index)
        files = {f"solvers/{one.method}.py" for one in assignments.values()}
        entering = self.dense["files"][block_file(index)] if self._sees_dense() else self.keys[-1]
        return key_of(
            task="solve", block=index, model=self.identity, entering=entering,
            assignments={name: one.facts() for name, one in assignments.items()},
            statistics=self.params.statistics.model_dump(),
            code=code_of("solving.py", "solution.py", "walk.py", "solvers/contract.py", "linalg", "models", *files),
            **compute_facts(self.model, self.params.compute.chunk),
        )  # fmt: skip

    def _of(self, index: int) -> dict[str, Assignment]:
        return {linear.name: self.assignments[linear.name] for linear in self.model.linears(index)}


def list_methods() -> str:
    """Every method with its settings and its paper."""
    lines = []
    for name in solvers.names():
        settings = ", ".join(f"{key}={value}" for key, value in registry.settings_of(name).items())
        kind = registry.class_of(name)
        lines.append(f"{name:<12} {settings or '-':<24} scopes: {', '.join(kind.scopes):<20} {kind.paper}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = parser_of("solve", __doc__)
    parser.add_argument("--list", action="store_true", help="list the methods and their papers, and stop")
    if parser.parse_args().list:
        print(list_methods())
        sys.exit(0)
    sys.exit(run_stage("solve", main, SECTIONS))
