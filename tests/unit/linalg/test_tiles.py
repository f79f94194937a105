"""Pruning one tile: compiled paths against plain torch and against the definition."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from stages.linalg.tiles import Tile, prune_columns, prune_columns_plainly, tile_of
from tests.helpers.committed import ROOT

CASES = [
    # rows, d_in, first, last, start, stop, groups
    (37, 48, 8, 40, 0, 32, None),
    (5, 130, 0, 130, 0, 130, None),
    (64, 33, 32, 33, 0, 1, None),
    (9, 40, 8, 40, 5, 17, None),
    (37, 48, 8, 40, 0, 32, (2, 4)),
    (21, 64, 0, 64, 0, 64, (4, 8)),
    (7, 24, 3, 24, 6, 12, (3, 3)),
    (7, 24, 0, 24, 0, 24, (1, 6)),
]


def make_tile(case, dtype=torch.float64, ties=False):
    rows, width, first, last, _, _, _ = case
    generator = torch.Generator().manual_seed(rows + width)
    weight = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    upper = torch.triu(torch.randn(width, width, generator=generator, dtype=torch.float64) * 0.2, 1)
    upper += torch.diag(1 + torch.rand(width, generator=generator, dtype=torch.float64))
    if ties:
        weight, upper = weight.sign(), torch.eye(width, dtype=torch.float64)
    keep = torch.rand(rows, width, generator=generator) < 0.5
    tile = tile_of(weight.to(dtype), keep, upper.to(dtype), first, last)
    tile.errors.zero_()
    return tile


def assert_same(tile: Tile, other: Tile):
    assert torch.equal(tile.keep, other.keep)
    torch.testing.assert_close(tile.weight, other.weight)
    torch.testing.assert_close(tile.errors, other.errors)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_the_compiled_tile_is_the_plain_one(case, dtype, ties):
    found, expected = make_tile(case, dtype, ties), make_tile(case, dtype, ties)
    prune_columns(found, *case[4:])
    prune_columns_plainly(expected, *case[4:])
    assert_same(found, expected)


def test_the_plain_tile_is_the_definition():
    case = CASES[0]
    tile, before = make_tile(case), make_tile(case)
    prune_columns_plainly(tile, *case[4:])
    _, _, first, last, *_ = case
    for r, row in enumerate(before.weight):
        for j in range(first, last):
            if not tile.keep[r, j]:
                error = row[j] / tile.upper[j - first, j - first]
                torch.testing.assert_close(tile.errors[r, j - first], error)
                row[j:last] -= error * tile.upper[j - first, j - first :]
    torch.testing.assert_close(tile.weight, before.weight)


def test_pruning_in_parts_is_pruning_at_once():
    case = CASES[1]
    once, parts = make_tile(case), make_tile(case)
    prune_columns(once, 0, 130)
    for start in range(0, 130, 40):
        prune_columns(parts, start, min(start + 40, 130))
    assert_same(parts, once)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    case = (300, 48, 0, 48, 0, 48, None)
    alone, shared = make_tile(case, torch.float32), make_tile(case, torch.float32)
    prune_columns(alone, 0, 48)
    monkeypatch.setattr("stages.linalg.tiles.WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    prune_columns(shared, 0, 48)
    assert torch.equal(shared.weight, alone.weight)
    assert torch.equal(shared.errors, alone.errors)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_tile_is_the_plain_one_when_interpreted():
    """In a process of its own: Triton reads whether to interpret when it is first imported."""
    environment = dict(os.environ, TRITON_INTERPRET="1")
    command = [sys.executable, "-m", "tests.unit.linalg.test_tiles"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["agreed", str(4 * len(CASES))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tile_on_a_gpu_is_the_plain_one(case, dtype):
    found, expected = make_tile(case, dtype), make_tile(case, dtype)
    moved = Tile(*(x.cuda() if isinstance(x, torch.Tensor) else x for x in vars(found).values()))
    prune_columns(moved, *case[4:])
    prune_columns_plainly(expected, *case[4:])
    assert_same(Tile(*(x.cpu() if isinstance(x, torch.Tensor) else x for x in vars(moved).values())), expected)


def interpret_triton() -> None:
    from stages.linalg.kernels.tile_cuda import prune_rows

    agreed = 0
    for case in CASES:
        for dtype in (torch.float32, torch.float64):
            for ties in (False, True):
                found, expected = make_tile(case, dtype, ties), make_tile(case, dtype, ties)
                start, stop, groups = case[4:]
                prune_rows(*vars(found).values(), start, stop, *(groups or (0, 0)))
                prune_columns_plainly(expected, start, stop, groups)
                assert_same(found, expected)
                agreed += 1
    print("agreed", agreed)


if __name__ == "__main__":
    interpret_triton()
