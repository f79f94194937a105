"""CPU seconds and memory of scores and compensation on a whole model's stored statistics, beside the papers' ways.

    python benchmarks/structured.py FOLDER [--sparsity 0.3] [--every 5]

FOLDER is a workspace in which fetch, extract and statistics have run (benchmarks/quality.py leaves one). One thread;
the blocks looked at stand for all. Peers, on the same matrices in the same run: Algorithm 1 of numerical pruning as
printed (a Hessian and its inverse in every one of 50 iterations), and Theorem 3 as it is printed (the inverse of the
whole Gram matrix, then of the removed part of it). Ratios are to the floor: the operations of one Cholesky factor of
every Gram matrix at the rate of this machine's products, in float64.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from stages.linalg.compensation import compensated
from stages.methods import registry
from stages.methods.units.contract import UnitProblem, UnitScorer
from stages.methods.units.ranking import keep_best
from stages.models.loading.memory import peak_memory_mb
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
from stages.solving.units.problem import statistics_of, unit_problem
from stages.walk.statistics import read_statistics

CPU = torch.device("cpu")
ITERATIONS = 50
PRINTED = "Algorithm 1 as printed"
Work = Callable[[UnitProblem, Tensor], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sparsity", type=float, default=0.3)
    parser.add_argument("--every", type=int, default=5, help="look at one block in so many")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = StreamedModel(options.folder / "data/model", CPU)
    looked, rate = range(0, model.blocks, options.every), product_rate()
    works = works_of()
    totals, floor = dict.fromkeys(works, 0.0), 0.0
    for index in looked:
        statistics = read_statistics(options.folder / f"data/statistics/block_{index:03d}.safetensors", CPU)
        for units in units_of(model, index):
            needs = frozenset({"coupled"})
            problem = unit_problem(model, units, statistics_of(units.sink.name, statistics), needs)
            scores = registry.load("newton")(problem)
            kept = units.count - min(units.count - 1, round(options.sparsity * units.count))
            columns = units.kept_columns(keep_best(scores, kept))
            floor += len(columns) ** 3 / 3 / rate
            for name, work in works.items():
                begin = time.process_time()
                work(problem, columns)
                totals[name] += time.process_time() - begin
    scale = model.blocks / len(looked)
    print(f"products: {rate / 1e9:.0f} GFLOP/s in float64; floor {floor * scale:.2f} s; peak {peak_memory_mb()} MB\n")
    print("| work | CPU s, whole model | over the floor |\n|---|---|---|")
    for name, seconds in totals.items():
        print(f"| {name} | {seconds * scale:.2f} | {seconds / floor:.1f} |")


def works_of() -> dict[str, Work]:
    """The timed functions, by name."""
    scorers = {
        "newton, closed": ("newton", {}),
        "newton, penalty (one factor, 50 steps)": ("newton", {"form": "penalty"}),
        "newton, box": ("newton", {"form": "box"}),
        "obs_units (without the walk backwards)": ("obs_units", {"compare": "none"}),
        "flap": ("flap", {}),
        "wanda_units": ("wanda_units", {}),
        "magnitude_units": ("magnitude_units", {}),
    }
    works: dict[str, Work] = {name: partial(_score, registry.load(*how)) for name, how in scorers.items()}
    works[PRINTED] = lambda problem, keep: algorithm_1(problem.dense.double(), problem.gram.double())
    works["compensation"] = lambda problem, keep: compensated(problem.dense, problem.gram, keep, 0.01)
    works["Theorem 3 as printed"] = lambda problem, keep: theorem_3(problem.dense.double(), problem.gram.double(), keep)
    return works


def _score(scorer: UnitScorer, problem: UnitProblem, keep: Tensor) -> Tensor:
    return scorer(problem)


def product_rate() -> float:
    """Operations a second of a large product in float64."""
    matrix = torch.randn(1536, 1536, dtype=torch.float64)
    matrix @ matrix
    begin = time.process_time()
    for _ in range(5):
        matrix @ matrix
    return 5 * 2 * 1536**3 / (time.process_time() - begin)


def algorithm_1(weight: Tensor, gram: Tensor) -> Tensor:
    """Newton's steps for the mask, with Hessian and inverse made in every one."""
    width = len(gram)
    mask, kept, strength = torch.ones(width, dtype=gram.dtype), 0.7 * width, 1000 * float(gram.diagonal().mean())
    for _ in range(ITERATIONS):
        own = (weight.T @ weight) * gram
        slope = strength * (mask.sum() - kept) - own @ (1 - mask)
        own.diagonal().add_(0.01 * own.diagonal().mean())
        mask = mask - torch.linalg.inv(own + strength) @ slope
    return mask


def theorem_3(weight: Tensor, gram: Tensor, keep: Tensor) -> Tensor:
    """W - W_p ((G⁻¹)_pp)⁻¹ (G⁻¹)_p:."""
    damped = gram.clone()
    damped.diagonal().add_(0.01 * gram.diagonal().mean())
    inverse = torch.linalg.inv(damped)
    return weight - weight[:, ~keep] @ torch.linalg.inv(inverse[~keep][:, ~keep]) @ inverse[~keep]


if __name__ == "__main__":
    main()
