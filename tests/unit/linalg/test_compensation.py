"""Compensation: what stays is refit by least squares, and what that loses is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.errors import NotPositiveDefiniteError
from stages.linalg.compensation import compensated
from tests.reference import numerical

SIDES = pytest.mark.parametrize(("rows", "removed"), [(3, 7), (7, 7), (20, 7), (5, 1), (5, 15)])
"""More removed inputs than outputs, as many, and fewer: the system is solved for either."""


def made(width=16, rows=5, removed=7, seed=0, decades=1.0, tokens=0):
    """Inputs (tokens, width) whose directions spread over so many powers of ten, a target (rows, width), a mask."""
    random = np.random.default_rng(seed)
    tokens = tokens or 20 * width
    u, _, v = np.linalg.svd(random.standard_normal((tokens, width)), full_matrices=False)
    x = torch.from_numpy(u * np.logspace(0, -decades, width)[: u.shape[1]] @ v * tokens**0.5)
    keep = torch.ones(width, dtype=torch.bool)
    keep[torch.from_numpy(random.permutation(width)[:removed])] = False
    return x, torch.from_numpy(random.standard_normal((rows, width))), keep


def gram_of(x):
    return x.T @ x / len(x)


def lost(weight, target, gram):
    away = (weight - target).double()
    return float(((away @ gram.double()) * away).sum())


@SIDES
def test_it_is_least_squares_on_the_data_and_theorem_3(rows, removed):
    x, target, keep = made(rows=rows, removed=removed)
    found = compensated(target, gram_of(x), keep, 0.0)
    gone = (~keep).nonzero().squeeze(1).tolist()
    for reference in (numerical.refitted, numerical.theorem_3):
        np.testing.assert_allclose(found.weight.T.numpy(), reference(x.numpy(), target.T.numpy(), gone), atol=1e-9)
    assert bool((found.weight[:, ~keep] == 0).all())
    assert (found.damping, found.attempts) == (0.0, 1)


@SIDES
def test_the_predicted_loss_is_remark_4(rows, removed):
    x, target, keep = made(rows=rows, removed=removed)
    gone = (~keep).nonzero().squeeze(1).tolist()
    expected = numerical.remark_4(x.numpy(), target.T.numpy(), gone) / len(x)
    assert compensated(target, gram_of(x), keep, 0.0).loss == pytest.approx(expected, rel=1e-9)


@SIDES
@pytest.mark.parametrize("damping", [0.0, 0.01, 3.0])
def test_the_predicted_loss_is_the_measured_one(rows, removed, damping):
    x, target, keep = made(rows=rows, removed=removed, seed=1)
    found = compensated(target, gram_of(x), keep, damping)
    assert found.loss == pytest.approx(lost(found.weight, target, gram_of(x)), rel=1e-9)
    outputs = (x @ (found.weight - target).T).square().sum() / len(x)
    assert found.loss == pytest.approx(float(outputs), rel=1e-9)


@SIDES
def test_damping_is_a_fraction_of_every_inputs_own_energy(rows, removed):
    x, target, keep = made(rows=rows, removed=removed)
    gram = gram_of(x)
    ridge = 0.05 * torch.diag(gram.diagonal()[keep])
    change = target[:, ~keep] @ gram[~keep][:, keep] @ torch.linalg.inv(gram[keep][:, keep] + ridge)
    found = compensated(target, gram, keep, 0.05).weight[:, keep]
    torch.testing.assert_close(found, target[:, keep] + change)
    torch.testing.assert_close(compensated(target, 1e6 * gram, keep, 0.05).weight[:, keep], found)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("damping", [0.0, 0.01, 1.0, 100.0])
@pytest.mark.parametrize("rows", [3, 30])
def test_never_worse_than_plain_removal(seed, damping, rows):
    x, target, keep = made(rows=rows, seed=seed, decades=3)
    gram = gram_of(x)
    assert compensated(target, gram, keep, damping).loss <= lost(torch.where(keep, target, 0.0), target, gram)


def test_more_damping_moves_less_and_loses_more():
    x, target, keep = made()
    found = [compensated(target, gram_of(x), keep, damping) for damping in (0.0, 0.01, 0.1, 1.0)]
    moved = [float((one.weight - target)[:, keep].norm()) for one in found]
    assert moved == sorted(moved, reverse=True)
    assert [one.loss for one in found] == sorted(one.loss for one in found)


def test_where_nothing_is_removed_the_target_comes_back():
    x, target, _ = made()
    found = compensated(target, gram_of(x), torch.ones(16, dtype=torch.bool), 0.01)
    assert torch.equal(found.weight, target)
    assert found.weight.data_ptr() != target.data_ptr()
    assert (found.loss, found.damping, found.attempts) == (0.0, 0.01, 1)


def test_inputs_are_left_as_they_are():
    x, target, keep = made()
    gram = gram_of(x)
    before = target.clone(), gram.clone(), keep.clone()
    compensated(target, gram, keep, 0.01)
    assert all(torch.equal(now, then) for now, then in zip((target, gram, keep), before, strict=True))


def test_a_singular_gram_is_damped_in_the_open():
    x, target, keep = made()
    x[:, keep.nonzero()[0]] = 0
    found = compensated(target, gram_of(x), keep, 0.0)
    assert (found.damping, found.attempts) == (1e-6, 2)
    assert found.loss == pytest.approx(lost(found.weight, target, gram_of(x)), rel=1e-9)


def test_a_gram_that_no_damping_saves_is_told_with_advice():
    x, target, keep = made()
    gram = gram_of(x)
    first = int(keep.nonzero()[0])
    gram[first, first] = -1
    with pytest.raises(NotPositiveDefiniteError, match=r"after damping 0\.5: .*9.*raise solve\.units\.damping"):
        compensated(target, gram, keep, 0.005)
    with pytest.raises(NotPositiveDefiniteError, match="after damping 1e-05"):
        compensated(target, gram, keep, 0.0)


def test_gram_matrices_that_are_not_finite_are_told():
    x, target, keep = made()
    with pytest.raises(NotPositiveDefiniteError):
        compensated(target, torch.full_like(gram_of(x), torch.nan), keep, 0.01)


@pytest.mark.parametrize("seed", range(20))
def test_float32_statistics_that_are_ill_conditioned_give_the_references_outputs(seed):
    """Directions over three powers of ten, their squares over six: near the end of float32's digits."""
    x, target, keep = made(width=40, rows=(8, 60)[seed % 2], removed=15, seed=seed, decades=3)
    found = compensated(target.float(), gram_of(x).float(), keep, 1e-4)
    assert found.weight.dtype == torch.float32
    damped = torch.cat((x, torch.diag((1e-4 * gram_of(x).diagonal() * len(x)).sqrt())))
    gone = (~keep).nonzero().squeeze(1).tolist()
    # the ridge is on what changes: rows that ask for the dense weights of the inputs that stay
    wanted = torch.cat((x @ target.T, damped[len(x) :][:, keep] @ target.T[keep]))
    kept = np.linalg.lstsq(damped[:, keep].numpy(), wanted.numpy(), rcond=None)[0]
    expected = torch.zeros_like(target)
    expected[:, keep] = torch.from_numpy(kept).T
    assert bool((expected[:, gone] == 0).all())
    away = (x @ (found.weight.double() - expected).T).norm() / (x @ target.T).norm()
    assert float(away) < 1e-4
    assert found.loss == pytest.approx(lost(expected, target, gram_of(x)), rel=1e-3)
