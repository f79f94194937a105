"""Figure 2 of Liang et al. again: the error of pruned attention matrices, on the inputs seen and on fresh ones.

Writes results/synthetic.csv, of which figure2.py makes tables and the figure; run in this folder.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from fused import FusedProblem, MaskDescent, keep_share
from torch import Tensor

from stages.linalg.attention import causal_mask
from stages.methods.linear.contract import Budget, LinearProblem
from stages.methods.linear.magnitude import Magnitude
from stages.methods.linear.sparsegpt import SparseGpt
from stages.methods.linear.wanda import Wanda
from stages.params.yamlfile import read_yaml

RESULTS = Path("results")
OURS, SAFE, WEIGHED = "Algorithm 1, fused W", "Algorithm 1, safe step", "Algorithm 1, ranked by size of M ∘ W"
LINEAR = {"magnitude": Magnitude(), "Wanda": Wanda(), "SparseGPT": SparseGpt()}
"""Each in the first of its scopes, its paper's own."""


@dataclass(frozen=True)
class Case:
    """Weights (d, d) of low rank, and two sets of inputs (k, n, d): to calibrate on, and fresh ones."""

    seed: int
    query: Tensor
    key: Tensor
    seen: FusedProblem
    fresh: FusedProblem


@dataclass(frozen=True)
class Result:
    """One method on one case: ‖f̃ - f‖²/‖f‖² on the inputs seen and on fresh ones; penalty None where it has none."""

    inputs: int
    tokens: int
    sparsity: float
    scaling: float
    seed: int
    method: str
    penalty: float | None
    calibration: float
    held_out: float


def main() -> None:
    """Measure and write the table."""
    settings = read_yaml(Path("params.yaml"))["synthetic"]
    torch.set_num_threads(settings["threads"])
    RESULTS.mkdir(exist_ok=True)
    names = [field.name for field in fields(Result)]
    with (RESULTS / "synthetic.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(one, name) for name in names] for one in measured(settings))


def measured(settings: dict[str, Any]) -> Iterator[Result]:
    """All points of the figure and of the tables, none twice."""
    base, middle = settings["penalty"], settings["sparsity"]
    for seed in settings["seeds"]:
        for inputs in settings["inputs"]:
            for tokens in settings["lengths"]:
                case = case_of(settings, seed, inputs, tokens, settings["scaling"])
                here = tokens == settings["tokens"]
                sparsities = settings["sparsities"] if here else [middle]
                yield from baselines(case, sparsities)
                yield from learned(case, descent(settings, base), sparsities, OURS)
                for power in settings["log2_penalties"] if here else []:
                    if 2.0**power != base:
                        yield from learned(case, descent(settings, 2.0**power), [middle], OURS)
        inputs, tokens = settings["inputs"][0], settings["tokens"]
        case = case_of(settings, seed, inputs, tokens, settings["scaling"], torch.float64)
        yield from learned(case, MaskDescent(base, "auto", settings["steps"], 0.0), [middle], SAFE)
        case = case_of(settings, seed, inputs, tokens, 1.0)
        yield from baselines(case, [middle])
        for power in settings["log2_penalties_unscaled"]:
            yield from learned(case, descent(settings, 2.0**power), [middle], OURS)


def descent(settings: dict[str, Any], penalty: float) -> MaskDescent:
    """Algorithm 1 as the paper runs it, at this penalty."""
    return MaskDescent(penalty, settings["step"], settings["steps"], settings["momentum"])


def case_of(
    settings: dict[str, Any], seed: int, inputs: int, tokens: int, scaling: float, dtype: torch.dtype = torch.float32
) -> Case:
    """Section 6.1: the first `rank` singular values of a Gaussian matrix, Gaussian inputs.

    The safe step needs float64: it is so small that all of M is the same number in float32.
    """
    width, generator = settings["width"], torch.Generator().manual_seed(seed)
    factors = []
    for _ in range(2):
        u, s, vh = torch.linalg.svd(torch.randn(width, width, generator=generator))
        s[settings["rank"] :] = 0
        factors.append((u * s @ vh).to(dtype))
    query, key = factors
    seen, fresh = torch.randn(2, inputs, tokens, width, generator=generator).to(dtype)
    mask = causal_mask(tokens, seen)
    return Case(seed, query, key, *(FusedProblem(query @ key.T, x, mask, scaling) for x in (seen, fresh)))


def baselines(case: Case, sparsities: list[float]) -> Iterator[Result]:
    """Every linear method on W_Q and W_K, and those without a refit on W; as linears, outputs are rows."""
    for sparsity in sparsities:
        for name, solver in LINEAR.items():
            budget = Budget(sparsity, solver.scopes[0])
            both = solver(linear_of(case, torch.cat([case.query.T, case.key.T])), budget).weight
            query, key = both.split(len(case.query))
            yield result(case, query.T @ key, sparsity, f"{name}, W_Q and W_K", None)
            if not solver.refits:
                fused = solver(linear_of(case, case.seen.weight.T), budget).weight.T
                yield result(case, fused, sparsity, f"{name}, fused W", None)


def linear_of(case: Case, target: Tensor) -> LinearProblem:
    """(d_out, d) linears on the calibration inputs, each of d rows."""
    tokens = case.seen.inputs.flatten(0, 1)
    rows = (len(case.query),) * (len(target) // len(case.query))
    return LinearProblem(target, tokens.T @ tokens / len(tokens), tokens.mean(0), len(tokens), rows)


def learned(case: Case, descent: MaskDescent, sparsities: list[float], method: str) -> Iterator[Result]:
    """One learned mask, cut at every sparsity; and what |M ∘ W| keeps, which the paper does not try."""
    weight, scores = case.seen.weight, descent(case.seen, sparsities[0]).scores
    for sparsity in sparsities:
        yield result(case, keep_share(scores, sparsity) * weight, sparsity, method, descent.penalty)
        if method == OURS:
            keep = keep_share((scores * weight).abs(), sparsity)
            yield result(case, keep * weight, sparsity, WEIGHED, descent.penalty)


def result(case: Case, weight: Tensor, sparsity: float, method: str, penalty: float | None) -> Result:
    """Both errors of a (d, d) weight in place of W."""
    inputs, tokens, _ = case.seen.inputs.shape
    errors = [problem.relative_error(weight) for problem in (case.seen, case.fresh)]
    return Result(inputs, tokens, sparsity, case.seen.scaling, case.seed, method, penalty, *errors)


if __name__ == "__main__":
    main()
