"""Solve the units of one block: o and down make up for the inputs that go, rows of what made those go too."""

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
from stages.models.streaming.units import Kind, Units, units_of
from stages.models.structure import Linear
from stages.params.pruning import Solve
from stages.runtime.clock import Clock
from stages.solving.units.problem import unit_problem
from stages.walk.rounding import in_stored_dtype
from stages.walk.statistics import InputStatistics


@dataclass
class _SolvedLinear:
    """A linear: its weight (d_out, d_in) in the checkpoint's dtype, its mask, and what its row tells."""

    weight: Tensor
    keep: Tensor
    changed: bool
    error: float
    correction: Correction
    found: Compensated | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class UnitSolver:
    """Solves a block whose number of units is settled; a BlockSolver.

    kept: (units,) bool by kind; with `solve.units.choice: pruned` as many are chosen anew.
    trained: gives the weight (d_out, d_in) of a linear that stands in the place of the dense one, if any does.
    """

    model: StreamedModel
    method: str
    scorer: UnitMethod
    kept: Mapping[Kind, Tensor]
    settings: Solve
    clock: Clock
    trained: Callable[[Linear], Tensor] | None = None

    def solve_all(self, index: int, statistics: Iterable[InputStatistics], put: bool = False) -> BlockSolution:
        """Solve block `index`, input after input; see BlockSolver.solve_all."""
        linears = {linear.name: linear for linear in self.model.linears(index)}
        kinds = units_of(self.model, index)
        sinks, kept = {units.sink.name: units for units in kinds}, dict[Kind, Tensor]()
        solved, source = dict[str, _SolvedLinear](), iter(statistics)
        while (one := self._next(source)) is not None:
            with self.clock.timing("solver", self.model.device):
                dense, target, corrections = self._targets([linears[name] for name in one.linears], one, sinks)
                for name, weight, wanted, correction in zip(one.linears, dense, target, corrections, strict=True):
                    if name in sinks:
                        units = sinks[name]
                        kept[units.kind] = self._chosen(units, one)
                        solved[name] = self._sink(units, kept[units.kind], weight, wanted, correction, one)
                    else:
                        solved[name] = self._source(linears[name], weight, wanted, correction, one)
                    if put:
                        self._put(linears[name], solved[name])
        for units in kinds:
            for linear, stays in units.kept_rows(kept[units.kind]).items():
                keep = stays[:, None].expand(linear.shape)
                solved[linear.name].keep = keep
                solved[linear.name].weight = torch.where(keep.to(self.model.device), solved[linear.name].weight, 0.0)
        rows = [(self._row(linear, solved[name]), solved[name]) for name, linear in linears.items()]
        return BlockSolution(
            [(row, one.keep, one.weight[one.keep] if one.changed else None) for row, one in rows],
            {str(kind): keep for kind, keep in kept.items()},
            {name: one.bias for name, one in solved.items() if one.bias is not None},
        )

    def _next(self, source: Iterator[InputStatistics]) -> InputStatistics | None:
        with self.clock.timing("calibration", self.model.device):
            return next(source, None)

    def _targets(
        self, linears: Sequence[Linear], statistics: InputStatistics, sinks: Mapping[str, Units]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Correction, ...]]:
        """Dense weights of linears that share an input, what they are to be nearest to, and by what that differs."""
        rows = tuple(linear.shape[0] for linear in linears)
        dense = torch.cat([self.model.weights.stored(linear).to(statistics.gram) for linear in linears])
        if self.trained is not None:
            target = torch.cat([self.trained(linear).to(statistics.gram) for linear in linears])
            return dense.split(rows), target.split(rows), (Correction(),) * len(rows)
        wanted = self.settings.units.corrected == "all" or all(linear.name in sinks for linear in linears)
        if statistics.output_errors is None or not wanted:
            return dense.split(rows), dense.split(rows), (Correction(),) * len(rows)
        share, ridges = self.settings.correction, self.settings.correction_ridges
        target, corrections = corrected_target(dense, *statistics.output_errors, rows, share, ridges)
        return dense.split(rows), target.split(rows), corrections

    def _chosen(self, units: Units, statistics: InputStatistics) -> Tensor:
        """The units that stay: those of the ranking, or as many by what the pruned model gives them."""
        keep = self.kept[units.kind]
        if self.settings.units.choice == "dense" or bool(keep.all()):
            return keep
        scorer = cast(UnitScorer, self.scorer)
        return keep_best(scorer(unit_problem(self.model, units, statistics, scorer.needs)), int(keep.sum()))

    def _sink(
        self, units: Units, keep: Tensor, dense: Tensor, target: Tensor, correction: Correction, one: InputStatistics
    ) -> _SolvedLinear:
        """o or down on the inputs that stay. Raises NotPositiveDefiniteError that names it."""
        columns = units.kept_columns(keep).to(dense.device)
        kind = self.settings.units.compensation
        how = self.scorer.compensation if kind == "auto" else kind
        gram, found = one.gram, None
        if how == "affine":
            gram = gram - torch.outer(one.mean, one.mean)
        weight = torch.where(columns, target, 0.0)
        if how in ("weights", "affine") and not bool(columns.all()):
            try:
                found = compensated(target, gram, columns, self.settings.units.damping)
            except NotPositiveDefiniteError as fault:
                raise NotPositiveDefiniteError(f"block {units.block}, {units.sink.name}: {fault}") from None
            weight = found.weight
        stored, bias, shift = self.model.weights.dtype, None, None
        weight = in_stored_dtype(weight, stored, units.sink, "weights")
        if how in ("bias", "affine") and not bool(columns.all()):
            before = self.model.weights.stored_bias(units.sink).to(target)
            bias = in_stored_dtype(before + (target - weight.to(target)) @ one.mean, stored, units.sink, "biases")
            shift = bias.to(target) - before
        changed = found is not None or correction.strength != 0 or self.trained is not None
        error = _error(weight.to(target), shift, dense, one)
        full = columns.expand(dense.shape).cpu()
        return _SolvedLinear(weight, full, changed, error, correction, found, None if bias is None else bias.cpu())

    def _source(
        self, linear: Linear, dense: Tensor, target: Tensor, correction: Correction, one: InputStatistics
    ) -> _SolvedLinear:
        weight = in_stored_dtype(target, self.model.weights.dtype, linear, "weights")
        keep = torch.ones(dense.shape, dtype=torch.bool)
        error = _error(weight.to(target), None, dense, one)
        changed = not torch.equal(weight, dense.to(weight.dtype))
        return _SolvedLinear(weight, keep, changed, error, correction)

    def _put(self, linear: Linear, solved: _SolvedLinear) -> None:
        self.model.weights.put(linear, solved.weight)
        if solved.bias is not None:
            self.model.weights.put_bias(linear, solved.bias)

    def _row(self, linear: Linear, one: _SolvedLinear) -> Row:
        found = one.found
        return linear_row(
            linear.name, linear.block, linear.role, method=self.method, pattern="units", scope="units",
            weights=one.keep.numel(), kept=int(one.keep.sum()), relative_error=one.error,
            damping=found.damping if found else None, attempts=found.attempts if found else 1, refits=one.changed,
            correction=one.correction.strength, correction_ridge=one.correction.ridge,
        )  # fmt: skip


def _error(weight: Tensor, shift: Tensor | None, dense: Tensor, one: InputStatistics) -> float:
    """‖(W - W₀) x + s‖² / ‖W₀ x‖² over the tokens; of rows that go with their units nothing is lost here."""
    away = weight - dense
    lost = row_energies(away, one.gram).double().sum()
    if shift is not None:
        lost += (2 * shift @ (away @ one.mean) + shift.square().sum()).double()
    there = row_energies(dense, one.gram).double().sum()
    return float(lost / there) if float(there) > 0 else 0.0
