"""SparseGPT's column sweep within one tile: each removed weight is compensated by the later columns of its row."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from stages.linalg.kernels.threads import over_rows
from stages.linalg.masks import keep_groups

WORTH_A_THREAD = 1 << 17
"""Weights to prune for each thread below which another thread costs more than it saves."""


@dataclass(frozen=True)
class Tile:
    """Tile of SparseGPT: columns first..first + c of a weight matrix that is pruned from left to right.

    weight:  (d_out, d_in), contiguous, rows of weights; the tile's columns are changed in place.
    keep:    (d_out, d_in) bool, contiguous; chosen here where the pattern is N:M, given otherwise.
    upper:   (c, c), contiguous, the tile's part of the upper factor U of the inverse Gram matrix.
    inverse: (c,) one over the diagonal of `upper`.
    errors:  (d_out, c) what columns right of the tile have to make up for, `errors @ U` of these rows
             of U; filled in as columns are pruned.
    first:   the tile's first column.
    """

    weight: Tensor
    keep: Tensor
    upper: Tensor
    inverse: Tensor
    errors: Tensor
    first: int


def tile_of(weight: Tensor, keep: Tensor, upper: Tensor, first: int, last: int) -> Tile:
    """The tile of columns first..last, `upper` (d_in, d_in) being the factor of the whole matrix."""
    part = upper[first:last, first:last].contiguous()
    errors = weight.new_empty(len(weight), last - first)
    return Tile(weight, keep, part, part.diagonal().reciprocal(), errors, first)


def prune_columns(tile: Tile, start: int, stop: int, groups: tuple[int, int] | None = None) -> None:
    """Prune columns start..stop of the tile in place, all columns before them being pruned.

    For every row and j from start on: e = w_j/U_jj where w_j goes, else 0; w_k ← w_k - e U_jk for every
    later column k of the tile. Then w_j = 0. With `groups` (n_keep, group_size) the mask of a group is
    chosen when it is reached, by (w_j/U_jj)² as they are then; start and stop lie between groups.

    Rows do not depend on each other. On the CPU they are shared out among torch.get_num_threads() threads;
    on CUDA a Triton kernel takes them where Triton is installed. Everything else goes column by column.
    """
    kind = tile.weight.device.type
    if kind == "cpu":
        _prune_on_cpu(tile, start, stop, groups)
    elif kind == "cuda" and importlib.util.find_spec("triton"):
        _prune_on_cuda(tile, start, stop, groups)
    else:
        prune_columns_plainly(tile, start, stop, groups)


def prune_columns_plainly(tile: Tile, start: int, stop: int, groups: tuple[int, int] | None = None) -> None:
    """`prune_columns` in plain tensor operations, on any device."""
    width = len(tile.upper)
    weight = tile.weight[:, tile.first : tile.first + width]
    keep = tile.keep[:, tile.first : tile.first + width]
    for j in range(start, stop):
        if groups is not None and (j - start) % groups[1] == 0:
            group = slice(j, j + groups[1])
            keep[:, group] = keep_groups((weight[:, group] * tile.inverse[group]).square(), *groups)
        tile.errors[:, j] = (weight[:, j] * tile.inverse[j]).masked_fill_(keep[:, j], 0.0)
        weight[:, j + 1 :].addr_(tile.errors[:, j], tile.upper[j, j + 1 :], alpha=-1)
    weight[:, start:stop].masked_fill_(~keep[:, start:stop], 0.0)


def _prune_on_cpu(tile: Tile, start: int, stop: int, groups: tuple[int, int] | None) -> None:
    from stages.linalg.kernels.tile_cpu import prune_rows  # numba is slow to import

    arrays = [x.numpy() for x in (tile.weight, tile.keep, tile.upper, tile.inverse, tile.errors)]
    work = partial(prune_rows, *arrays, tile.first, start, stop, *(groups or (0, 0)))
    rows = len(tile.weight)
    over_rows(work, rows, min(torch.get_num_threads(), 1 + rows * (stop - start) // WORTH_A_THREAD))


def _prune_on_cuda(tile: Tile, start: int, stop: int, groups: tuple[int, int] | None) -> None:
    from stages.linalg.kernels.tile_cuda import prune_rows  # Triton is not everywhere

    arrays = (tile.weight, tile.keep, tile.upper, tile.inverse, tile.errors)
    prune_rows(*arrays, tile.first, start, stop, *(groups or (0, 0)))
