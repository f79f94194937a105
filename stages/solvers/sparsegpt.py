"""SparseGPT: prune columns from left to right, later columns make up for the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.factor import inverse_factor
from stages.solvers.contract import Budget, LinearProblem, LinearSolution, solution_of

MICRO_TILE = 16
"""Columns updated one by one; beyond them the updates of 16 columns go in one product."""


@dataclass(frozen=True)
class SparseGpt:
    """Optimal-brain-surgeon pruning with lazy updates (Frantar, Alistarh 2023, Algorithm 1).

    With U the upper Cholesky factor of the damped inverse Gram matrix, column j of a row scores
    w_j²/U_jj²; a removed weight leaves the error e = w_j/U_jj, and w_k ← w_k - e U_jk for k > j.
    Updates beyond the current tile wait until it is finished.

    The mask of a tile is chosen once, when it is reached (N:M: group by group), for all rows of a
    linear together (scope `linear`) or row by row.

    Departs from the public code: exact counts (its `<=` on a sorted threshold drops one too many);
    linears that share a Gram matrix are solved in one pass; inside a tile, updates wait again for
    micro-tiles, which changes the order of additions only.

    tile:    columns processed together, at least 1.
    damping: added to diag(G), as a fraction of its mean, more than 0 where G may be singular.
    """

    tile: int = 128
    damping: float = 0.01

    paper: ClassVar[str] = "Frantar, Alistarh 2023, arXiv:2301.00774"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[str, ...]] = ("linear", "row")

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ParameterError(f"tile: expected at least 1, got {self.tile}")
        if not 0 <= self.damping < float("inf"):
            raise ParameterError(f"damping: expected at least 0, got {self.damping}")

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Raises NotPositiveDefiniteError if the damped Gram matrix is singular."""
        factor = inverse_factor(problem.gram, self.damping, problem.tokens)
        group_size = budget.groups[1] if budget.groups else 1
        tile = -(-self.tile // group_size) * group_size
        weight = problem.target.T.clone(memory_format=torch.contiguous_format)
        keep = torch.ones_like(weight, dtype=torch.bool)
        width = weight.shape[0]
        for start in range(0, width, tile):
            stop = min(start + tile, width)
            columns = _Columns(weight[start:stop], keep[start:stop], factor.upper[start:stop, start:stop])
            if budget.groups is None:
                columns.keep.copy_(budget.select(columns.scores().T, problem.rows, start, width).T)
            errors = _prune_tile(columns, budget, problem.rows)
            weight[stop:].addmm_(factor.upper[start:stop, stop:].T, errors, alpha=-1)
        return solution_of(weight.T, keep.T, factor.damping, factor.attempts)


@dataclass(frozen=True)
class _Columns:
    """Views of some columns of the transposed weight (c, d_out), its mask, and their factor (c, c)."""

    weight: Tensor
    keep: Tensor
    upper: Tensor

    def scores(self) -> Tensor:
        return (self.weight / self.upper.diagonal()[:, None]).square()

    def part(self, start: int, stop: int) -> _Columns:
        return _Columns(self.weight[start:stop], self.keep[start:stop], self.upper[start:stop, start:stop])


def _prune_tile(tile: _Columns, budget: Budget, rows: tuple[int, ...]) -> Tensor:
    """Update a tile's kept columns in place; gives the errors, (c, d_out), that later columns make up for."""
    width = tile.weight.shape[0]
    group_size = budget.groups[1] if budget.groups else 1
    micro = -(-MICRO_TILE // group_size) * group_size
    errors = torch.empty_like(tile.weight)
    diagonal = tile.upper.diagonal().tolist()
    for start in range(0, width, micro):
        stop = min(start + micro, width)
        for j in range(start, stop):
            if budget.groups and j % group_size == 0:
                group = tile.part(j, j + group_size)
                group.keep.copy_(budget.select(group.scores().T, rows).T)
            torch.div(tile.weight[j], diagonal[j], out=errors[j]).masked_fill_(tile.keep[j], 0.0)
            tile.weight[j + 1 : stop].addr_(tile.upper[j, j + 1 : stop], errors[j], alpha=-1)
        tile.weight[stop:].addmm_(tile.upper[start:stop, stop:].T, errors[start:stop], alpha=-1)
    return errors
