"""SparseGPT: prunes columns from left to right and compensates each removal in the columns after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.factor import inverse_factor
from stages.linalg.tiles import prune_columns, tile_of
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution


@dataclass(frozen=True)
class SparseGpt:
    """Optimal-brain-surgeon pruning with lazy updates (Frantar, Alistarh 2023, Algorithm 1).

    With U the upper Cholesky factor of the damped inverse Gram matrix, column j of a row scores
    w_j²/U_jj²; a removed weight leaves the error e = w_j/U_jj, and w_k ← w_k - e U_jk for k > j.
    Within `lazy` columns that is done column by column; columns beyond them wait for one product.

    Masks are chosen when their columns are reached, for all rows of a linear together (scope `linear`)
    or row by row: by default once for `tile` columns, as in the public code, or once for every column,
    as in the listing of Li et al. 2024, arXiv:2408.12151. N:M goes group by group in either case.

    Departs from the public code: exact counts (its `<=` on a sorted threshold drops one too many);
    linears that share a Gram matrix are solved in one pass. Departs from Li et al.: their listing takes
    entries of the inverse Gram matrix, for which the recursion is wrong, in place of U.

    selection: `tile`: one mask for `tile` columns. `column`: one for each column, so that every column
               loses the same share (with scope `row`, whole columns: prefer `linear`).
    tile:      columns whose mask is chosen together, at least 1.
    lazy:      columns after which all later ones are updated, at least 1; it changes the time and the
               order of additions only. Rounded to whole tiles or groups where it is larger than one.
               `auto`: see `lazy_width`.
    damping:   added to diag(G), as a fraction of its mean, more than 0 where G may be singular.
    """

    selection: Literal["tile", "column"] = "tile"
    tile: int = 128
    lazy: int | Literal["auto"] = "auto"
    damping: float = 0.01

    paper: ClassVar[str] = "Frantar, Alistarh 2023, arXiv:2301.00774"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[str, ...]] = ("linear", "row")
    idle: ClassVar[dict[str, tuple[str, tuple[object, ...]]]] = {"tile": ("selection", ("column",))}

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ParameterError(f"tile: expected at least 1, got {self.tile}")
        if self.lazy != "auto" and self.lazy < 1:
            raise ParameterError(f"lazy: expected auto or at least 1, got {self.lazy}")
        if not 0 <= self.damping < float("inf"):
            raise ParameterError(f"damping: expected at least 0, got {self.damping}")

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Mask and weights; raises NotPositiveDefiniteError if the damped Gram matrix is singular."""
        upper, damping, attempts = inverse_factor(problem.gram, self.damping, problem.tokens)
        weight = problem.target.clone(memory_format=torch.contiguous_format)
        keep = torch.ones_like(weight, dtype=torch.bool)
        width = weight.shape[1]
        together = self._mask_width(budget)
        for first, last in _lazy_tiles(width, together, self._lazy(width, budget)):
            tile = tile_of(weight, keep, upper, first, last)
            if budget.groups is not None:
                prune_columns(tile, 0, last - first, budget.groups)
            else:
                for start in range(first, last, together):
                    if start % together == 0:
                        _choose(weight, keep, upper, budget, problem.rows, slice(start, start + together))
                    prune_columns(tile, start - first, min(start + together, last) - first)
            weight[:, last:].addmm_(tile.errors, upper[first:last, last:], alpha=-1)
        return LinearSolution(weight, keep, damping, attempts)

    def _mask_width(self, budget: Budget) -> int:
        """Columns whose mask is chosen at once: an N:M group, a tile, or one."""
        if budget.groups is not None:
            return budget.groups[1]
        return self.tile if self.selection == "tile" else 1

    def _lazy(self, width: int, budget: Budget) -> int:
        """Columns of a lazy update, an N:M group at least."""
        lazy = lazy_width(width) if self.lazy == "auto" else self.lazy
        return lazy if budget.groups is None else max(lazy, budget.groups[1])


def lazy_width(width: int) -> int:
    """Columns after which all later ones are updated, for d_in = `width`: 128, from 4096 on 256.

    Measured for d = 256 to 4096 on one CPU thread (benchmarks/lazy_update.py): up to d = 2048 nothing is
    faster than 128 by more than a hundredth, at 4096 256 is by a twentieth. The exponent that balances the
    bound of Li et al., width^0.5275, gives 19 to 80 there: docs/experiments/lazy-update.md.
    """
    return 128 if width < 4096 else 256


def _lazy_tiles(width: int, chosen: int, lazy: int) -> Iterator[tuple[int, int]]:
    """Columns first..last of every lazy tile: whole multiples of `chosen` columns, or parts of one."""
    span = max(lazy // chosen, 1) * chosen
    for begin in range(0, width, span):
        end = min(begin + span, width)
        for first in range(begin, end, min(lazy, span)):
            yield first, min(first + lazy, end)


def _choose(weight: Tensor, keep: Tensor, upper: Tensor, budget: Budget, rows: tuple[int, ...], part: slice) -> None:
    """Choose the mask of some columns, to which all updates of the columns before them have been applied."""
    scores = (weight[:, part] / upper.diagonal()[part]).square_()
    keep[:, part] = budget.select(scores, rows, part.start, weight.shape[1])
