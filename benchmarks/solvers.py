"""CPU seconds and memory of every method on a whole model's stored statistics, beside the public SparseGPT class.

    python benchmarks/solvers.py FOLDER [--methods sparsegpt,admm] [--every 5] [--peer .../sparsegpt.py]

FOLDER is a workspace in which fetch, extract and statistics have run (benchmarks/quality.py leaves one). One
thread, 50 % unless told otherwise; the blocks looked at stand for all. Ratios are to the arithmetic's floor: products
of all weights with their Gram matrix, once. `--peer` is sparsegpt.py of IST-DASLab/sparsegpt, used as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import nn

from stages.linalg.correction import OutputErrorMoments, corrected_target
from stages.linalg.refit import guarded_refit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods import registry
from stages.methods.linear.contract import Budget, LinearProblem, relative_errors
from stages.models.streaming.streamed import StreamedModel
from stages.walk.statistics import read_statistics

CPU = torch.device("cpu")


@dataclass
class Total:
    """Seconds and memory of a method over the measured blocks, and the errors it left."""

    seconds: float = 0.0
    errors: list[float] = field(default_factory=list)

    def row(self, name: str, scale: float, floor: float) -> str:
        mean = f"{math.exp(sum(map(math.log, self.errors)) / len(self.errors)):.5f}" if self.errors else ""
        return f"| {name} | {self.seconds * scale:.1f} | {self.seconds / floor:.1f} | {mean} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default=",".join(registry.names("linear")))
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--every", type=int, default=5, help="look at one block in so many")
    parser.add_argument("--peer", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = StreamedModel(options.folder / "data/model", CPU)
    looked = range(0, model.blocks, options.every)
    works = works_of(options.methods.split(","), Budget(options.sparsity), options.peer)
    totals = {name: Total() for name in ("one product", *works)}
    for index in looked:
        for problem in problems(model, index, options.folder):
            timed(totals["one product"], lambda problem: problem.target @ problem.gram, problem)
            for name, work in works.items():
                weight = timed(totals[name], work, problem)
                if weight is not None:
                    totals[name].errors += relative_errors(problem, weight)
    scale = model.blocks / len(looked)
    print("| work | CPU s, whole model | over one product | relative error, geometric mean |\n|---|---|---|---|")
    print("\n".join(total.row(name, scale, totals["one product"].seconds) for name, total in totals.items()))


def problems(model: StreamedModel, index: int, folder: Path) -> Iterator[LinearProblem]:
    linears = {linear.name: linear for linear in model.linears(index)}
    for one in read_statistics(folder / f"data/statistics/block_{index:03d}.safetensors", CPU):
        parts = [model.weights.stored(linears[name]).float() for name in one.linears]
        yield LinearProblem(torch.cat(parts), one.gram, one.mean, one.tokens, tuple(len(part) for part in parts))


def works_of(names: list[str], budget: Budget, peer: Path | None) -> dict[str, Callable[[LinearProblem], Any]]:
    works: dict[str, Callable[[LinearProblem], Any]] = {}
    for method in names:
        solver = registry.load(method)
        works[method] = lambda problem, solver=solver: solver(problem, budget).weight
    works["sparsegpt, refit: cg, 10 steps"] = lambda problem: refitted(problem, budget)
    works["correction of the target, 2 ridges"] = correction
    if peer is not None:
        spec = importlib.util.spec_from_file_location("peer", peer)
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(peer.parent))
        spec.loader.exec_module(module)
        torch.cuda.synchronize = lambda *_: None  # which it calls, with nothing to wait for here
        works["public SparseGPT class"] = lambda problem: public(module.SparseGPT, problem, budget.sparsity)
    return works


def refitted(problem: LinearProblem, budget: Budget) -> torch.Tensor:
    solution, unit = registry.load("sparsegpt")(problem, budget), unit_diagonal(problem.gram)
    target, start = problem.target * unit.scale, solution.weight * unit.scale
    return guarded_refit(target, unit.gram, solution.keep, start, 10, 0.1) / unit.scale


def correction(problem: LinearProblem) -> None:
    lack = OutputErrorMoments(problem.gram, 0.01 * (problem.gram @ problem.target.T))
    corrected_target(problem.target, lack, lack, problem.rows, 1.0, (0.1, 1.0))


def public(kind: Any, problem: LinearProblem, sparsity: float) -> torch.Tensor:
    """Each linear with a Gram matrix of its own, as that code has it (twice the mean, which changes nothing)."""
    found = []
    for part in problem.target.split(problem.rows):
        linear = nn.Linear(part.shape[1], part.shape[0], bias=False)
        linear.weight.data = part.clone()
        pruner = kind(linear)
        pruner.H, pruner.nsamples = 2 * problem.gram.clone(), 1
        with contextlib.redirect_stdout(None):
            pruner.fasterprune(sparsity, percdamp=0.01, blocksize=128)
        found.append(linear.weight.data)
    return torch.cat(found)


def timed(total: Total, work: Callable[[LinearProblem], Any], problem: LinearProblem) -> Any:
    work(problem)  # compiles, and warms the caches for all alike
    begin = time.process_time()
    result = work(problem)
    total.seconds += time.process_time() - begin
    return result


if __name__ == "__main__":
    main()
