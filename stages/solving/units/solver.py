"""Removes heads or channels of a block and refits o_proj and down_proj on the remaining inputs.

The linears that make the units (q, k, v; gate, up) lose the units' rows; those that read them (the sinks: o, down) lose
columns, and their kept weights, a bias, or both are refitted so that the outputs change least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from stages.artifacts.linears import linear_row
from stages.artifacts.solution import BlockSolution
from stages.artifacts.table import Row
from stages.errors import NotPositiveDefiniteError
from stages.linalg.compensation import Compensated, compensated
from stages.linalg.correction import Correction, corrected_target
from stages.linalg.error import row_energies
from stages.methods.units.contract import UnitMethod, UnitScorer
from stages.methods.units.ranking import keep_best
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KeptUnits, Kind, Units, units_of
from stages.models.structure import Linear
from stages.params.pruning import Solve
from stages.runtime.cost import BlockCost
from stages.solving.units.checks import compensation_of
from stages.solving.units.problem import unit_problem
from stages.walk.rounding import in_stored_dtype
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class _Target:
    """What one linear is solved for: its dense weight and its target weight (d_out, d_in), which may be corrected."""

    dense: Tensor
    weight: Tensor
    correction: Correction


@dataclass
class _SolvedLinear:
    """A solved linear: weight (d_out, d_in) and bias (d_out,) in the checkpoint's dtype, mask, figures of its row.

    changed: whether kept weights are not the dense ones; compensation: how they were refitted, where they were.
    """

    weight: Tensor
    keep: Tensor
    changed: bool
    error: float
    correction: Correction
    compensation: Compensated | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class UnitSolver:
    """Solves a block in which the number of kept heads and channels is settled; a BlockSolver.

    kept: the units that stay; with `solve.units.choice: pruned` as many are chosen anew, by the statistics of the
          pruned model.
    trained_weight: gives the trained weight (d_out, d_in) of a linear, which replaces the dense one as its target.
    """

    model: StreamedModel
    method: str
    scorer: UnitMethod
    kept: KeptUnits
    settings: Solve
    cost: BlockCost
    trained_weight: Callable[[Linear], Tensor] | None = None

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index`; see BlockSolver.solve_all."""
        linears = {linear.name: linear for linear in self.model.linears(index)}
        both = units_of(self.model, index)
        sinks, kept = {units.sink.name: units for units in both}, dict[Kind, Tensor]()
        solved, source = dict[str, _SolvedLinear](), iter(statistics)
        while (shared := self._next(source)) is not None:
            with self.cost.timing("solver", self.model.device):
                targets = self._targets([linears[name] for name in shared.linears], shared, sinks)
                for name, target in zip(shared.linears, targets, strict=True):
                    if name in sinks:
                        units = sinks[name]
                        kept[units.kind] = self._choose(units, shared)
                        solved[name] = self._solve_sink(units, kept[units.kind], target, shared)
                    else:
                        solved[name] = self._solve_source(linears[name], target, shared)
                    if put:
                        self._put(linears[name], solved[name])
        for units in both:
            self._remove_rows(units, kept[units.kind], solved)
        return self._solution(linears, solved, kept)

    def _next(self, source: Iterator[InputStatistics]) -> InputStatistics | None:
        """Statistics of the next input; taking them runs the block, which is timed as calibration."""
        with self.cost.timing("calibration", self.model.device):
            return next(source, None)

    def _targets(
        self, linears: Sequence[Linear], statistics: InputStatistics, sinks: Mapping[str, Units]
    ) -> list[_Target]:
        """The targets of linears that share an input: trained, corrected toward the dense outputs, or dense."""
        rows = tuple(linear.shape[0] for linear in linears)
        dense = torch.cat([self.model.weights.stored(linear).to(statistics.gram) for linear in linears])
        target, corrections = dense, (Correction(),) * len(rows)
        corrects = self.settings.units.corrected == "all" or all(linear.name in sinks for linear in linears)
        if self.trained_weight is not None:
            target = torch.cat([self.trained_weight(linear).to(statistics.gram) for linear in linears])
        elif statistics.output_errors is not None and corrects:
            share, ridges = self.settings.correction, self.settings.correction_ridges
            target, corrections = corrected_target(dense, *statistics.output_errors, rows, share, ridges)
        return [_Target(*parts) for parts in zip(dense.split(rows), target.split(rows), corrections, strict=True)]

    def _choose(self, units: Units, statistics: InputStatistics) -> Tensor:
        """The units (units,) bool that stay: those ranked before the walk, or as many by the pruned model's scores."""
        keep = self.kept[units.kind]
        if self.settings.units.choice == "dense" or bool(keep.all()):
            return keep
        scorer = cast(UnitScorer, self.scorer)
        return keep_best(scorer(unit_problem(self.model, units, statistics, scorer.needs)), int(keep.sum()))

    def _solve_sink(self, units: Units, keep: Tensor, target: _Target, statistics: InputStatistics) -> _SolvedLinear:
        """The linear that reads the units (o, down) on the inputs that stay, compensated for the others.

        Raises NotPositiveDefiniteError that names it.
        """
        columns = units.kept_columns(keep).to(target.dense.device)
        how = compensation_of(self.settings, self.scorer) if not bool(columns.all()) else "none"
        weight, compensation = torch.where(columns, target.weight, 0.0), None
        if how in ("weights", "affine"):
            compensation = self._compensate(units, columns, target.weight, statistics, centred=how == "affine")
            weight = compensation.weight
        weight = in_stored_dtype(weight, self.model.weights.dtype, units.sink, "weights")
        bias, shift = None, None
        if how in ("bias", "affine"):
            before = self.model.weights.stored_bias(units.sink).to(target.weight)
            lost = (target.weight - weight.to(target.weight)) @ statistics.mean
            bias = in_stored_dtype(before + lost, self.model.weights.dtype, units.sink, "biases")
            shift = bias.to(target.weight) - before
        changed = compensation is not None or target.correction.strength != 0 or self.trained_weight is not None
        error = _relative_error(weight.to(target.weight), shift, target.dense, statistics)
        keep = columns.expand(target.dense.shape).cpu()
        bias = None if bias is None else bias.cpu()
        return _SolvedLinear(weight, keep, changed, error, target.correction, compensation, bias)

    def _compensate(
        self, units: Units, columns: Tensor, target: Tensor, statistics: InputStatistics, centred: bool
    ) -> Compensated:
        """Least squares of the kept columns to the target's outputs; centred: to their deviations from the mean."""
        gram = statistics.gram
        if centred:
            # A bias that is refitted beside the weights takes the mean, so the weights answer to the covariance.
            gram = gram - torch.outer(statistics.mean, statistics.mean)
        try:
            return compensated(target, gram, columns, self.settings.units.damping)
        except NotPositiveDefiniteError as fault:
            raise NotPositiveDefiniteError(f"block {units.block}, {units.sink.name}: {fault}") from None

    def _solve_source(self, linear: Linear, target: _Target, statistics: InputStatistics) -> _SolvedLinear:
        """A linear that makes units (q, k, v, gate, up), before the rows of removed units go."""
        weight = in_stored_dtype(target.weight, self.model.weights.dtype, linear, "weights")
        keep = torch.ones(target.dense.shape, dtype=torch.bool)
        error = _relative_error(weight.to(target.weight), None, target.dense, statistics)
        changed = not torch.equal(weight, target.dense.to(weight.dtype))
        return _SolvedLinear(weight, keep, changed, error, target.correction)

    def _remove_rows(self, units: Units, keep: Tensor, solved: Mapping[str, _SolvedLinear]) -> None:
        """Remove the rows of removed units from the linears that make them."""
        for linear, stays in units.kept_rows(keep).items():
            source = solved[linear.name]
            source.keep = stays[:, None].expand(linear.shape)
            source.weight = torch.where(source.keep.to(self.model.device), source.weight, 0.0)

    def _put(self, linear: Linear, solved: _SolvedLinear) -> None:
        """Put a solved weight and bias into the loaded block."""
        self.model.weights.put(linear, solved.weight)
        if solved.bias is not None:
            self.model.weights.put_bias(linear, solved.bias)

    def _solution(
        self, linears: Mapping[str, Linear], solved: Mapping[str, _SolvedLinear], kept: KeptUnits
    ) -> BlockSolution:
        """The block's solution, its linears in the block's order, biases in the order in which they were solved."""
        entries = []
        for name, linear in linears.items():
            result = solved[name]
            weight = result.weight[result.keep] if result.changed else None
            entries.append((self._row(linear, result), result.keep, weight))
        biases = {name: result.bias for name, result in solved.items() if result.bias is not None}
        return BlockSolution(entries, {str(kind): keep for kind, keep in kept.items()}, biases)

    def _row(self, linear: Linear, solved: _SolvedLinear) -> Row:
        """The row of the table of linears."""
        compensation, correction = solved.compensation, solved.correction
        return linear_row(
            linear.name, linear.block, linear.role, method=self.method, pattern="units", scope="units",
            weights=solved.keep.numel(), kept=int(solved.keep.sum()), relative_error=solved.error,
            damping=compensation.damping if compensation else None,
            attempts=compensation.attempts if compensation else 1, refits=solved.changed,
            correction=correction.strength, correction_ridge=correction.ridge,
        )  # fmt: skip


def _relative_error(weight: Tensor, shift: Tensor | None, dense: Tensor, statistics: InputStatistics) -> float:
    """E‖(W - W₀) x + s‖² / E‖W₀ x‖² over the tokens, s (d_out,) the shift of the bias; 0 where W₀ x is.

    Rows that go with their units count as they were: nobody reads them, so nothing is lost with them.
    """
    away = weight - dense
    lost = row_energies(away, statistics.gram).double().sum()
    if shift is not None:
        # E‖Δx + s‖² = E‖Δx‖² + 2 sᵀΔ E[x] + ‖s‖².
        lost += (2 * shift @ (away @ statistics.mean) + shift.square().sum()).double()
    there = row_energies(dense, statistics.gram).double().sum()
    return float(lost / there) if float(there) > 0 else 0.0
