"""Contract of layer-wise methods: LinearProblem, Budget, LinearSolution, and the protocol LinearSolver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from stages.linalg.error import relative_error
from stages.linalg.masks import keep_groups, keep_largest, removed_before, removed_count
from stages.linalg.schedule import SparsityPattern


@dataclass(frozen=True)
class LinearProblem:
    """Layer-wise pruning problem: the stacked weights of linears that share an input, and that input's statistics.

    A method looks for W with an exact number of zeros and small tr[(W - T) G (W - T)ᵀ], the mean squared error of the
    outputs over the calibration tokens.

    target: T, (d_out, d_in) weights whose outputs are to be preserved, the rows of all linears stacked: those before
            pruning, or what they were corrected to.
    gram:   G, (d_in, d_in) mean over tokens of x xᵀ, in the dtype and on the device of `target`.
    mean:   (d_in,) mean over tokens of x.
    tokens: how many tokens the means are over.
    rows:   rows of each linear; they add up to d_out.

    Raises ValueError for shapes that do not agree.
    """

    target: Tensor
    gram: Tensor
    mean: Tensor
    tokens: int
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        d_out, d_in = self.target.shape
        if sum(self.rows) != d_out or self.gram.shape != (d_in, d_in):
            raise ValueError(
                f"expected rows that add up to {d_out} and a {d_in} x {d_in} Gram matrix, "
                f"got {self.rows} and {tuple(self.gram.shape)}"
            )


@dataclass(frozen=True)
class Budget:
    """How many weights are removed, and among which they compete.

    sparsity: fraction removed, of every row or of every linear.
    scope:    `row`: every row loses the same number; `linear`: the rows of a linear compete.
    groups:   (n_keep, group_size) for N:M, which then decides alone; None for unstructured.
    kept:     for scope `linear`, the exact number kept in each linear, where a ranking over the whole
              model has set it; None: the count follows from sparsity.
    """

    sparsity: float
    scope: Literal["row", "linear"] = "linear"
    groups: tuple[int, int] | None = None
    kept: tuple[int, ...] | None = None

    def select(self, scores: Tensor, rows: tuple[int, ...], start: int = 0, width: int | None = None) -> Tensor:
        """Mask (d_out, c) bool that keeps the highest `scores` (d_out, c) within the budget.

        For column tiles: scores of the columns [start, start + c) of weights `width` wide. Taken from left to right,
        the counts of all tiles add up to the exact total.
        """
        stop = start + scores.shape[1]
        width = stop if width is None else width
        if self.groups is not None:
            return keep_groups(scores, *self.groups)
        if self.scope == "row":
            removed = _between(removed_count(width, self.sparsity), start, stop, width)
            return keep_largest(scores, stop - start - removed)
        masks = []
        for i, part in enumerate(scores.split(rows)):
            total = part.shape[0] * width
            removed = removed_count(total, self.sparsity) if self.kept is None else total - self.kept[i]
            removed = _between(removed, start, stop, width)
            masks.append(keep_largest(part.flatten(), part.numel() - removed).view_as(part))
        return torch.cat(masks)

    def kept_counts(self, rows: tuple[int, ...], width: int) -> tuple[int, ...]:
        """Number of weights that stay in each linear, of d_in = `width`."""
        if self.groups is not None:
            return tuple(count * width // self.groups[1] * self.groups[0] for count in rows)
        if self.scope == "row":
            return tuple(count * (width - removed_count(width, self.sparsity)) for count in rows)
        if self.kept is not None:
            return self.kept
        return tuple(count * width - removed_count(count * width, self.sparsity) for count in rows)

    def patterns(self, rows: tuple[int, ...], width: int) -> tuple[SparsityPattern, ...]:
        """The budget of each linear alone, for methods that threshold one linear after another."""
        by_row = self.scope == "row"
        return tuple(
            SparsityPattern(count, kept // count if by_row else kept, by_row, self.groups)
            for count, kept in zip(rows, self.kept_counts(rows, width), strict=True)
        )


def _between(removed: int, start: int, stop: int, width: int) -> int:
    """How many of `removed` weights, spread evenly over `width` columns, fall into the columns [start, stop)."""
    return removed_before(removed, stop, width) - removed_before(removed, start, width)


@dataclass(frozen=True)
class LinearSolution:
    """Solution of a LinearProblem.

    weight:   (d_out, d_in), exactly zero where not kept.
    keep:     (d_out, d_in) bool.
    damping:  added to diag(G), as a fraction of its mean; None if nothing was inverted.
    attempts: factorisations tried; more than 1 means that the damping was raised.
    """

    weight: Tensor
    keep: Tensor
    damping: float | None = None
    attempts: int = 1


def masked_solution(weight: Tensor, keep: Tensor, damping: float | None = None, attempts: int = 1) -> LinearSolution:
    """A LinearSolution of this weight with exact zeros where `keep` is False."""
    return LinearSolution(torch.where(keep, weight, 0.0), keep, damping, attempts)


def relative_errors(problem: LinearProblem, weight: Tensor) -> tuple[float, ...]:
    """Relative error ‖XΔᵀ‖²/‖XTᵀ‖² of each linear, Δ = weight - T, for a stacked weight (d_out, d_in)."""
    return relative_error(weight, problem.target, problem.gram, problem.rows)


class LinearSolver(Protocol):
    """A layer-wise method: a frozen dataclass of its settings that solves a LinearProblem when called.

    paper:  its source, in one line.
    refits: whether kept weights change.
    scopes: the scopes it can work in (row, linear, model), its paper's own first.
    """

    paper: str
    refits: bool
    scopes: tuple[str, ...]

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Solve one problem to the exact counts of the budget; inputs are not modified."""
        ...
