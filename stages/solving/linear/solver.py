"""Solves the linears of one block: target correction, the method, the refit, rounding to the checkpoint's dtype.

Linears that share an input and an assignment are stacked and solved together, with one factorisation.
"""

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
from stages.runtime.cost import BlockCost
from stages.solving.linear.assignment import Assignment, budget_of
from stages.solving.linear.attention import attention_problem
from stages.solving.plan import BlockInputs
from stages.walk.rounding import in_stored_dtype
from stages.walk.statistics import InputStatistics

Entry = tuple[Row, Tensor, Tensor | None]


@dataclass(frozen=True)
class SolvedLinear:
    """A solved linear: its row of the table, its mask (d_out, d_in) bool and its weight (d_out, d_in) as stored."""

    linear: Linear
    row: Row
    keep: Tensor
    weight: Tensor

    @property
    def entry(self) -> Entry:
        """Row, mask and kept weights (kept,) for a BlockSolution; None for weights that are the dense ones."""
        return self.row, self.keep, self.weight[self.keep] if self.row["refits"] else None


@dataclass(frozen=True)
class LinearsSolver:
    """Solves a block's linears, those of one input at a time; a BlockSolver.

    assignments: of every linear, by its name.
    settings:    of corrections and refits.
    inputs:      hidden states entering the block, for methods that prune q and k jointly.
    """

    model: StreamedModel
    assignments: Mapping[str, Assignment]
    settings: Solve
    cost: BlockCost
    inputs: BlockInputs | None = None

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index`; see BlockSolver.solve_all."""
        linears, solved, source = self.model.linears(index), dict[str, SolvedLinear](), iter(statistics)
        while (shared := self._next(source)) is not None:
            for result in self._solve_input(linears, shared):
                solved[result.linear.name] = result
                if put:
                    self.model.weights.put(result.linear, result.weight)
        return BlockSolution([solved[linear.name].entry for linear in linears])

    def _next(self, source: Iterator[InputStatistics]) -> InputStatistics | None:
        """Statistics of the next input; taking them runs the block, which is timed as calibration."""
        with self.cost.timing("calibration", self.model.device):
            return next(source, None)

    def _solve_input(self, linears: Sequence[Linear], statistics: InputStatistics) -> Iterator[SolvedLinear]:
        """Solve the linears that share an input, those with equal assignments together."""
        named = {linear.name: linear for linear in linears}
        rows = {name: named[name].shape[0] for name in statistics.linears}
        for names in _group_by_assignment(statistics.linears, self.assignments):
            yield from self._solve_group([named[name] for name in names], statistics.only(names, rows))

    def _solve_group(self, linears: list[Linear], statistics: InputStatistics) -> Iterator[SolvedLinear]:
        """Solve linears of one input and one assignment, their rows stacked."""
        assigned = [self.assignments[linear.name] for linear in linears]
        dense = self._dense_weight(linears, statistics.gram.dtype)
        rows = tuple(linear.shape[0] for linear in linears)
        problem = LinearProblem(dense, statistics.gram, statistics.mean, statistics.tokens, rows)
        corrections = (Correction(),) * len(linears)
        if assigned[0].leaves_dense:
            solution = LinearSolution(dense, torch.ones_like(dense, dtype=torch.bool))
        elif assigned[0].removes_all:
            solution = LinearSolution(torch.zeros_like(dense), torch.zeros_like(dense, dtype=torch.bool))
        else:
            self._check_inputs(linears, assigned[0], statistics.gram)
            with self.cost.timing("solver", self.model.device):
                solution, corrections = self._correct_solve_refit(problem, assigned, linears, statistics)
        yield from self._split(linears, assigned, problem, solution, corrections)

    def _check_inputs(self, linears: list[Linear], assignment: Assignment, gram: Tensor) -> None:
        """Raise NotPositiveDefiniteError where all inputs are zero, so that no weight is better than another."""
        if gram.diagonal().any() or (assignment.method == "magnitude" and assignment.refit == "none"):
            return
        names = ", ".join(linear.name for linear in linears)
        cause = "on this calibration text: use other text, or a rule that leaves them dense (sparsity: 0)"
        if self.settings.inputs == "pruned":
            cause = (
                f"with what is left of the linears before them (here sparsity is {assignment.sparsity:g}): lower it, "
                "or give those before them a rule with a lower one"
            )
        raise NotPositiveDefiniteError(f"block {linears[0].block}, {names}: all {len(gram)} inputs are zero {cause}")

    def _dense_weight(self, linears: list[Linear], dtype: torch.dtype) -> Tensor:
        """Dense weights (d_out, d_in) of some linears, their rows stacked; raises NotFiniteError."""
        weights = []
        for linear in linears:
            weight = self.model.weights.stored(linear).to(self.model.device, dtype)
            if not torch.isfinite(weight).all():
                raise NotFiniteError(
                    f"block {linear.block}: the weights of {linear.name} are not finite: fetch a sound checkpoint"
                )
            weights.append(weight)
        return torch.cat(weights)

    def _correct_solve_refit(
        self, problem: LinearProblem, assigned: list[Assignment], linears: list[Linear], statistics: InputStatistics
    ) -> tuple[LinearSolution, tuple[Correction, ...]]:
        """The solution and each linear's correction. Raises NotPositiveDefiniteError that names the linears."""
        try:
            target, corrections = self._target(problem, assigned[0], statistics)
            dense, problem = problem.target, dataclasses.replace(problem, target=target)
            solution = self._run_method(assigned, problem, dense)
            if assigned[0].refit != "none":
                solution = self._refit(problem, solution, assigned[0].refit)
            return solution, corrections
        except NotPositiveDefiniteError as error:
            names = ", ".join(linear.name for linear in linears)
            raise NotPositiveDefiniteError(f"block {linears[0].block}, {names}: {error}") from None

    def _target(
        self, problem: LinearProblem, assignment: Assignment, statistics: InputStatistics
    ) -> tuple[Tensor, tuple[Correction, ...]]:
        """The target (d_out, d_in), dense or corrected toward the outputs of the dense model, and the corrections."""
        if not assignment.corrects_target or statistics.output_errors is None:
            return problem.target, (Correction(),) * len(problem.rows)
        share, ridges = self.settings.correction, self.settings.correction_ridges
        return corrected_target(problem.target, *statistics.output_errors, problem.rows, share, ridges)

    def _run_method(self, assigned: list[Assignment], problem: LinearProblem, dense: Tensor) -> LinearSolution:
        """The method's solution; `dense`: the weights before pruning, where the target is another."""
        first, budget = assigned[0], budget_of(assigned)
        if not first.joint:
            return cast(LinearSolver, first.solver)(problem, budget)
        if self.inputs is None:
            raise ValueError(f"{first.method}: what enters the attention is not at hand")
        solver = cast(AttentionSolver, first.solver)
        with attention_problem(self.inputs, problem, dense, solver.batch, first.corrected) as attention:
            return solver(attention, budget)

    def _refit(self, problem: LinearProblem, solution: LinearSolution, how: str) -> LinearSolution:
        """Least squares of the kept weights on the mask, in unit-diagonal coordinates. how: cg or exact."""
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
        assigned: list[Assignment],
        problem: LinearProblem,
        solution: LinearSolution,
        corrections: Sequence[Correction],
    ) -> Iterator[SolvedLinear]:
        """A stacked solution linear by linear, its weights rounded to the checkpoint's dtype.

        The row's error is that of the rounded weights, against the dense ones.
        """
        first = assigned[0]
        refits = not first.leaves_dense and (first.solver.refits or first.refit != "none" or first.corrects_target)
        parts, keeps = solution.weight.split(problem.rows), solution.keep.split(problem.rows)
        weights = [
            in_stored_dtype(part, self.model.weights.dtype, linear, "weights")
            for linear, part in zip(linears, parts, strict=True)
        ]
        errors = relative_errors(problem, torch.cat(weights).to(problem.target.dtype))
        for i, (linear, assignment) in enumerate(zip(linears, assigned, strict=True)):
            row = linear_row(
                linear.name, linear.block, linear.role, method=assignment.method, pattern=assignment.pattern,
                scope=assignment.scope, weights=keeps[i].numel(), kept=int(keeps[i].sum()), relative_error=errors[i],
                damping=solution.damping, attempts=solution.attempts, refits=refits, refit=assignment.refit,
                correction=corrections[i].strength, correction_ridge=corrections[i].ridge,
            )  # fmt: skip
            yield SolvedLinear(linear, row, keeps[i], weights[i])


def _group_by_assignment(names: tuple[str, ...], assignments: Mapping[str, Assignment]) -> Iterator[list[str]]:
    """Names with equal assignments (counts left aside, unless all is removed) together, in order."""
    groups: dict[Any, list[str]] = {}
    for name in names:
        assignment = assignments[name]
        group = dataclasses.replace(assignment, kept=None), assignment.removes_all
        groups.setdefault(group, []).append(name)
    yield from groups.values()
