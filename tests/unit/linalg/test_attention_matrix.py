"""The attention matrix: errors and gradient as autograd has them, whatever the mask, the heads and the pieces."""

from __future__ import annotations

import pytest
import torch

from stages.linalg import attention as matrix
from stages.linalg.attention import Heads, causal_mask, errors_between, squared_error
from tests.helpers.largest import Largest
from tests.reference.attention_matrix import plainly

MASKS = ("none", "causal", "window", "of each sequence", "of each head")
EVERY_MASK = pytest.mark.parametrize("mask", MASKS)
EVERY_PIECE = pytest.mark.parametrize("held", [1, 40, 200, 1 << 18])
"""Entries held at once: a row, a few, many with a rest, all of a sequence."""


def make_mask(kind, n=12, dtype=torch.float64):
    like = torch.zeros((), dtype=dtype)
    causal = causal_mask(n, like)
    lowest = torch.finfo(dtype).min
    if kind == "window":
        far = torch.ones(n, n, dtype=torch.bool).tril(-4)
        return causal.masked_fill(far, lowest)
    if kind in ("of each sequence", "of each head"):
        generator = torch.Generator().manual_seed(5)
        shape = (3, 1, n, n) if kind == "of each sequence" else (1, 4, n, n)
        hidden = torch.rand(shape, generator=generator) < 0.4
        hidden[..., 0] = False
        return torch.zeros(shape, dtype=dtype).masked_fill(hidden, lowest)
    return None if kind == "none" else causal


def make_heads(seed=0, mask="causal", softcap=None, key_heads=4, n=12, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(3, 4, n, 5, generator=generator, dtype=torch.float64).to(dtype)
    key = torch.randn(3, key_heads, n, 5, generator=generator, dtype=torch.float64).to(dtype)
    return Heads(query, key, make_mask(mask, n, dtype), 0.7, softcap)


@EVERY_PIECE
@EVERY_MASK
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_gradient_is_that_of_autograd(monkeypatch, held, mask, softcap, key_heads):
    monkeypatch.setattr(matrix, "HELD", held)
    ours, dense = (make_heads(seed, mask, softcap, key_heads) for seed in (0, 1))
    query, key = ours.query.clone().requires_grad_(), ours.key.clone().requires_grad_()
    expected = (plainly(ours._replace(query=query, key=key)) - plainly(dense)).square().sum()
    wanted = torch.autograd.grad(3 * expected, (query, key))
    found = squared_error(ours._replace(query=query, key=key), dense)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    for one, other in zip(torch.autograd.grad(3 * found, (query, key)), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
        assert float(other.abs().max()) > 0.1


@EVERY_PIECE
@EVERY_MASK
@pytest.mark.parametrize("key_heads", [4, 2])
def test_errors_are_those_of_whole_matrices(monkeypatch, held, mask, key_heads):
    monkeypatch.setattr(matrix, "HELD", held)
    ours, dense = (make_heads(seed, mask, key_heads=key_heads) for seed in (0, 1))
    found = errors_between(ours, dense)
    pruned, whole = plainly(ours), plainly(dense)
    torch.testing.assert_close(found.error, (pruned - whole).square().sum((0, 2, 3)))
    torch.testing.assert_close(found.energy, whole.square().sum((0, 2, 3)))
    torch.testing.assert_close(found.relative, found.error / found.energy)
    shown = pruned if ours.mask is None else torch.where(ours.mask == 0, pruned, 1.0)
    torch.testing.assert_close(found.least, shown.amin((0, 2, 3)))
    assert float(found.error.sum()) == pytest.approx(float(squared_error(ours, dense)))


@EVERY_MASK
def test_a_key_no_query_of_a_piece_may_see_changes_nothing(monkeypatch, mask):
    heads = make_heads(mask=mask)
    whole = errors_between(heads, make_heads(1, mask))
    monkeypatch.setattr(matrix, "HELD", 4 * 12 * 5)
    for one, other in zip(errors_between(heads, make_heads(1, mask)), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_equal_heads_have_no_error_and_no_gradient():
    heads = make_heads()
    query = heads.query.clone().requires_grad_()
    error = squared_error(heads._replace(query=query), heads)
    (slope,) = torch.autograd.grad(error, query)
    assert float(error.detach()) == 0
    assert not slope.any()
    assert not errors_between(heads, heads).error.any()


def test_errors_of_parts_add_up():
    ours, dense = make_heads(0), make_heads(1)
    parts = [
        errors_between(*(one._replace(query=one.query[rows], key=one.key[rows]) for one in (ours, dense)))
        for rows in (slice(0, 1), slice(1, 3))
    ]
    for one, other in zip(parts[0].plus(parts[1]), errors_between(ours, dense), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_kept_and_inputs_are_left_as_they_are(dtype):
    ours, dense = make_heads(0, dtype=dtype), make_heads(1, dtype=dtype)
    query, key = ours.query.clone().requires_grad_(), ours.key.clone().requires_grad_()
    tensors = [query, key, ours.mask, dense.query, dense.key, dense.mask]
    before = [tensor.detach().clone() for tensor in tensors]
    error = squared_error(ours._replace(query=query, key=key), dense)
    slopes = torch.autograd.grad(error, (query, key))
    errors_between(ours, dense)
    assert {error.dtype, *(slope.dtype for slope in slopes)} == {dtype}
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))


def test_float32_is_float64_but_for_rounding():
    exact = squared_error(make_heads(0), make_heads(1))
    rounded = squared_error(make_heads(0, dtype=torch.float32), make_heads(1, dtype=torch.float32))
    assert float(rounded) == pytest.approx(float(exact), rel=1e-5)


def test_no_more_entries_are_held_than_stated(monkeypatch):
    ours, dense = (make_heads(seed, "none", n=128) for seed in (0, 1))
    query = ours.query.clone().requires_grad_()
    monkeypatch.setattr(matrix, "HELD", 8192)
    with Largest() as seen:
        errors_between(ours, dense)
        squared_error(ours._replace(query=query), dense).backward()
    assert query.numel() < seen.entries == 8192 < 128 * 128
    with Largest() as seen:
        plainly(ours)
    assert seen.entries == 3 * 4 * 128 * 128
