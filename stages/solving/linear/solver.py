"""Solve the linears of one block: those that share an input and an assignment go together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from stages.artifacts.linears import linear_row
from stages.artifacts.solution import BlockSolution
from stages.artifacts.table import Row
from stages.errors import NotFiniteError, NotPositiveDefiniteError
from stages.linalg.correction import Correction, corrected_target
from stages.linalg.refit import exact_refit, guarded_refit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods.attention.contract import AttentionSolver
from stages.methods.linear.contract import LinearProblem, LinearSolution, LinearSolver, relative_errors
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.params.pruning import Solve
from stages.runtime.clock import Clock
from stages.solving.linear.assignment import Assignment, budget_of
from stages.solving.linear.attention import attention_problem
from stages.solving.plan import BlockInputs
from stages.walk.rounding import in_stored_dtype
from stages.walk.statistics import InputStatistics

Entry = tuple[Row, Tensor, Tensor | None]


@dataclass(frozen=True)
class SolvedLinear:
    """A linear that is solved: its row of the table, its mask and its weight (d_out, d_in) as it will be stored."""

    linear: Linear
    row: Row
    keep: Tensor
    weight: Tensor

    @property
    def entry(self) -> Entry:
        """The row, the mask and, where they are not the dense ones, the kept weights (kept,)."""
        return self.row, self.keep, self.weight[self.keep] if self.row["refits"] else None


@dataclass(frozen=True)
class LinearsSolver:
    """Solves a block's linears: those of one input at a time.

    assignments: of every linear, by name; settings: of corrections and refits; inputs: what enters the block,
    for methods that prune q and k together.
    """

    model: StreamedModel
    assignments: Mapping[str, Assignment]
    settings: Solve
    clock: Clock
    inputs: BlockInputs | None = None

    def _solve(self, linears: Sequence[Linear], statistics: InputStatistics) -> Iterator[SolvedLinear]:
        """Solve those of `linears` that the statistics are of."""
        named = {linear.name: linear for linear in linears}
        rows = {name: named[name].shape[0] for name in statistics.linears}
        for names in _alike(statistics.linears, self.assignments):
            yield from self._together([named[name] for name in names], statistics.only(names, rows))

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index`, input after input, and give its linears in order.

        put: whether a solved linear goes into the loaded block before the next input's statistics are taken.
        """
        linears, solved, source = self.model.linears(index), dict[str, SolvedLinear](), iter(statistics)
        while (one := self._next(source)) is not None:
            for found in self._solve(linears, one):
                solved[found.linear.name] = found
                if put:
                    self.model.weights.put(found.linear, found.weight)
        return BlockSolution([solved[linear.name].entry for linear in linears])

    def _next(self, source: Iterator[InputStatistics]) -> InputStatistics | None:
        with self.clock.timing("calibration", self.model.device):
            return next(source, None)

    def _together(self, linears: list[Linear], statistics: InputStatistics) -> Iterator[SolvedLinear]:
        chosen = [self.assignments[linear.name] for linear in linears]
        dense = self._dense(linears, statistics.gram.dtype)
        rows = tuple(linear.shape[0] for linear in linears)
        problem = LinearProblem(dense, statistics.gram, statistics.mean, statistics.tokens, rows)
        corrections = (Correction(),) * len(linears)
        if chosen[0].leaves_dense:
            solution = LinearSolution(dense, torch.ones_like(dense, dtype=torch.bool))
        elif chosen[0].removes_all:
            solution = LinearSolution(torch.zeros_like(dense), torch.zeros_like(dense, dtype=torch.bool))
        else:
            self._check_inputs(linears, chosen[0], statistics.gram)
            with self.clock.timing("solver", self.model.device):
                solution, corrections = self._solved(problem, chosen, linears, statistics)
        yield from self._split(linears, chosen, problem, solution, corrections)

    def _check_inputs(self, linears: list[Linear], chosen: Assignment, gram: Tensor) -> None:
        """Raise NotPositiveDefiniteError where all inputs are zero, so that no weight is better than another."""
        if gram.diagonal().any() or (chosen.method == "magnitude" and chosen.refit == "none"):
            return
        names = ", ".join(linear.name for linear in linears)
        cause = "on this calibration text: use other text, or a rule that leaves them dense (sparsity: 0)"
        if self.settings.inputs == "pruned":
            cause = (
                f"with what is left of the linears before them (here sparsity is {chosen.sparsity:g}): lower it, or "
                "give those before them a rule with a lower one"
            )
        raise NotPositiveDefiniteError(f"block {linears[0].block}, {names}: all {len(gram)} inputs are zero {cause}")

    def _dense(self, linears: list[Linear], dtype: torch.dtype) -> Tensor:
        weights = []
        for linear in linears:
            weight = self.model.weights.stored(linear).to(self.model.device, dtype)
            if not torch.isfinite(weight).all():
                raise NotFiniteError(
                    f"block {linear.block}: the weights of {linear.name} are not finite: fetch a sound checkpoint"
                )
            weights.append(weight)
        return torch.cat(weights)

    def _target(
        self, problem: LinearProblem, chosen: Assignment, statistics: InputStatistics
    ) -> tuple[Tensor, tuple[Correction, ...]]:
        """What the linears are to stand in for, and how it differs from the dense weights."""
        if not chosen.corrects_target or statistics.output_errors is None:
            return problem.target, (Correction(),) * len(problem.rows)
        share, ridges = self.settings.correction, self.settings.correction_ridges
        return corrected_target(problem.target, *statistics.output_errors, problem.rows, share, ridges)

    def _solved(
        self, problem: LinearProblem, chosen: list[Assignment], linears: list[Linear], statistics: InputStatistics
    ) -> tuple[LinearSolution, tuple[Correction, ...]]:
        """Correct the target, solve, refit. Raises NotPositiveDefiniteError that names the linears."""
        try:
            target, corrections = self._target(problem, chosen[0], statistics)
            dense, problem = problem.target, dataclasses.replace(problem, target=target)
            solution = self._run(chosen, problem, dense)
            if chosen[0].refit != "none":
                solution = self._refitted(problem, solution, chosen[0].refit)
            return solution, corrections
        except NotPositiveDefiniteError as error:
            names = ", ".join(linear.name for linear in linears)
            raise NotPositiveDefiniteError(f"block {linears[0].block}, {names}: {error}") from None

    def _run(self, chosen: list[Assignment], problem: LinearProblem, dense: Tensor) -> LinearSolution:
        """The method's solution; `dense` are the weights before pruning."""
        first, budget = chosen[0], budget_of(chosen)
        if not first.joint:
            return cast(LinearSolver, first.solver)(problem, budget)
        if self.inputs is None:
            raise ValueError(f"{first.method}: what enters the attention is not at hand")
        solver = cast(AttentionSolver, first.solver)
        with attention_problem(self.inputs, problem, dense, solver.batch, first.corrected) as attention:
            return solver(attention, budget)

    def _refitted(self, problem: LinearProblem, solution: LinearSolution, how: str) -> LinearSolution:
        """The kept weights anew by least squares on the mask, in unit-diagonal coordinates."""
        steps, ridge = self.settings.refit_steps, self.settings.refit_ridge
        unit = unit_diagonal(problem.gram)
        target, start = problem.target * unit.scale, solution.weight * unit.scale
        if how == "cg":
            weight = guarded_refit(target, unit.gram, solution.keep, start, steps, ridge)
        else:
            weight = exact_refit(target, unit.gram, solution.keep, ridge)
        return dataclasses.replace(solution, weight=torch.where(solution.keep, weight / unit.scale, 0.0))

    def _split(
        self,
        linears: list[Linear],
        chosen: list[Assignment],
        problem: LinearProblem,
        solution: LinearSolution,
        corrections: Sequence[Correction],
    ) -> Iterator[SolvedLinear]:
        """One entry a linear; the error is that of the weights as they will be stored, against the dense ones."""
        first = chosen[0]
        refits = not first.leaves_dense and (first.solver.refits or first.refit != "none" or first.corrects_target)
        parts, keeps = zip(linears, solution.weight.split(problem.rows), strict=True), solution.keep.split(problem.rows)
        weights = [in_stored_dtype(part, self.model.weights.dtype, linear, "weights") for linear, part in parts]
        errors = relative_errors(problem, torch.cat(weights).to(problem.target.dtype))
        for i, (linear, one) in enumerate(zip(linears, chosen, strict=True)):
            row = linear_row(
                linear.name, linear.block, linear.role, method=one.method, pattern=one.pattern, scope=one.scope,
                weights=keeps[i].numel(), kept=int(keeps[i].sum()), relative_error=errors[i],
                damping=solution.damping, attempts=solution.attempts, refits=refits, refit=one.refit,
                correction=corrections[i].strength, correction_ridge=corrections[i].ridge,
            )  # fmt: skip
            yield SolvedLinear(linear, row, keeps[i], weights[i])


def _alike(names: tuple[str, ...], assignments: Mapping[str, Assignment]) -> Iterator[list[str]]:
    """Names with equal assignments (but for counts) together, in order."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        one = assignments[name]
        alike = dataclasses.replace(one, kept=None), one.removes_all
        groups.setdefault(alike, []).append(name)
    yield from groups.values()
