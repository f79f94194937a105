"""SparseGPT's column sweep over one tile (linalg/tiles.py) in Triton: a program holds its rows in registers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ENTRIES = 4096
"""Weights that a program holds: rows x columns, columns rounded up to a power of two."""


def prune_rows(
    weight: Tensor,
    keep: Tensor,
    upper: Tensor,
    inverse: Tensor,
    errors: Tensor,
    first: int,
    start: int,
    stop: int,
    n_keep: int,
    group_size: int,
) -> None:
    """Prune columns start..stop of a tile in all rows; later columns of the tile make up for it.

    Arguments as in stages/linalg/kernels/tile_cpu.py, which this must agree with, on the device of `weight`.
    """
    rows, width = len(weight), len(upper)
    columns = triton.next_power_of_2(width)
    height = max(1, ENTRIES // columns)
    _prune[(triton.cdiv(rows, height),)](
        weight[:, first:], keep[:, first:], upper, inverse, errors, rows, width, weight.stride(0), start, stop,
        N_KEEP=n_keep, GROUP=group_size, HEIGHT=height, COLUMNS=columns,
    )  # fmt: skip


@triton.jit
def _prune(  # type: ignore[no-untyped-def]
    weight, keep, upper, inverse, errors, rows, width, stride, start, stop,
    N_KEEP: tl.constexpr, GROUP: tl.constexpr, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    r = (tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)).to(tl.int64)[:, None]
    c = tl.arange(0, COLUMNS)[None, :]
    inside = (r < rows) & (c < width)
    w = tl.load(weight + r * stride + c, mask=inside, other=0.0)
    kept = tl.load(keep + r * stride + c, mask=inside, other=1).to(tl.int32)
    inv = tl.load(inverse + c, mask=c < width, other=0.0)
    e = tl.zeros_like(w)
    for j in range(start, stop):
        if GROUP > 0:  # noqa: SIM102 (known when compiled; a remainder by 0 is not)
            if (j - start) % GROUP == 0:
                scores = w * inv * (w * inv)
                ahead = tl.zeros_like(kept)
                for i in tl.static_range(GROUP):
                    rival = tl.sum(tl.where(c == j + i, scores, 0.0), 1)[:, None]
                    ahead += ((rival > scores) | ((rival == scores) & (j + i < c))).to(tl.int32)
                kept = tl.where((c >= j) & (c < j + GROUP), (ahead < N_KEEP).to(tl.int32), kept)
        lost = tl.sum(tl.where((c == j) & (kept == 0), w * inv, 0.0), 1)[:, None]
        e = tl.where(c == j, lost, e)
        w -= lost * tl.load(upper + j * width + c, mask=(c > j) & (c < width), other=0.0)
    done = inside & (c >= start) & (c < stop)
    tl.store(weight + r * stride + c, tl.where(done & (kept == 0), 0.0, w), mask=inside)
    tl.store(keep + r * stride + c, kept != 0, mask=done)
    tl.store(errors + r * width + c, e, mask=done)
