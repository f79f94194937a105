"""Solve one block: linears that share an input and an assignment go together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.linears import Row
from stages.assignment import Assignment, budget_of
from stages.errors import NotFiniteError, NotPositiveDefiniteError
from stages.models.compute import synchronize
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.solvers.contract import LinearProblem, LinearSolution, errors_of
from stages.walk import InputStatistics


@dataclass
class Clock:
    """What the solvers of a block took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def figures(self) -> dict[str, float]:
        """For the cost of the stage."""
        return {"solver_seconds": self.seconds, "solver_cpu_seconds": self.cpu_seconds}


def solve_block(
    model: StreamedModel,
    index: int,
    assignments: Mapping[str, Assignment],
    statistics: list[InputStatistics],
    clock: Clock,
) -> list[tuple[Row, Tensor, Tensor | None]]:
    """Rows, masks and kept weights (in the checkpoint's dtype) of the linears of block `index`, in order."""
    linears = {linear.name: linear for linear in model.linears(index)}
    solved: dict[str, tuple[Row, Tensor, Tensor | None]] = {}
    for one in statistics:
        for names in _alike(one.linears, assignments):
            together = [linears[name] for name in names]
            chosen = [assignments[name] for name in names]
            problem = _problem(model, together, one)
            solution = _solve(problem, chosen, together, model, clock)
            solved.update(_split(together, chosen, problem, solution, model.stored))
    return [solved[name] for name in linears]


def _alike(names: tuple[str, ...], assignments: Mapping[str, Assignment]) -> Iterator[list[str]]:
    """Names with equal assignments (but for counts) together, in order."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        one = assignments[name]
        groups.setdefault((one.method, one.solver, one.sparsity, one.pattern, one.scope), []).append(name)
    yield from groups.values()


def _problem(model: StreamedModel, linears: list[Linear], statistics: InputStatistics) -> LinearProblem:
    weights = []
    for linear in linears:
        weight = model.stored_weight(linear).to(model.device, statistics.gram.dtype)
        if not torch.isfinite(weight).all():
            raise NotFiniteError(
                f"block {linear.block}: the weights of {linear.name} are not finite: fetch a sound checkpoint"
            )
        weights.append(weight)
    rows = tuple(linear.shape[0] for linear in linears)
    return LinearProblem(torch.cat(weights), statistics.gram, statistics.mean, statistics.tokens, rows)


def _solve(
    problem: LinearProblem, chosen: list[Assignment], linears: list[Linear], model: StreamedModel, clock: Clock
) -> LinearSolution:
    if chosen[0].leaves_dense:
        keep = torch.ones_like(problem.target, dtype=torch.bool)
        return LinearSolution(problem.target, keep)
    synchronize(model.device)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        solution = chosen[0].solver(problem, budget_of(chosen))
    except NotPositiveDefiniteError as error:
        names = ", ".join(linear.name for linear in linears)
        raise NotPositiveDefiniteError(f"block {linears[0].block}, {names}: {error}") from None
    synchronize(model.device)
    clock.seconds += time.perf_counter() - wall
    clock.cpu_seconds += time.process_time() - cpu
    return solution


def _split(
    linears: list[Linear],
    chosen: list[Assignment],
    problem: LinearProblem,
    solution: LinearSolution,
    stored: torch.dtype,
) -> Iterator[tuple[str, tuple[Row, Tensor, Tensor | None]]]:
    """One entry a linear; the error is that of the weights as they will be stored."""
    refits = chosen[0].solver.refits and not chosen[0].leaves_dense
    weight = solution.weight.to(stored)
    errors = errors_of(problem, weight.to(problem.target.dtype))
    weights, keeps = weight.split(problem.rows), solution.keep.split(problem.rows)
    for i, (linear, one) in enumerate(zip(linears, chosen, strict=True)):
        kept = int(keeps[i].sum())
        row: Row = {
            "linear": linear.name, "block": linear.block, "role": linear.role, "method": one.method,
            "pattern": one.pattern, "scope": one.scope, "weights": keeps[i].numel(), "kept": kept,
            "sparsity": 1 - kept / keeps[i].numel(), "relative_error": errors[i],
            "damping": solution.damping, "attempts": solution.attempts, "refits": refits,
        }  # fmt: skip
        yield linear.name, (row, keeps[i], weights[i][keeps[i]] if refits else None)
