"""Least squares on a support: conjugate gradients and the exact minimum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from stages.errors import NotPositiveDefiniteError
from stages.linalg.error import row_energies
from stages.linalg.kernels.refit_cpu import conjugate_step
from stages.linalg.masks import keep_largest
from stages.linalg.refit import conjugate_refit, exact_refit, guarded_refit, plain_step
from stages.linalg.unit_diagonal import unit_diagonal
from tests.helpers.problems import KINDS, make_problem

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
RIDGE = 0.1


def unit_problem(kind="correlated", seed=0, dtype=torch.float64):
    """Target, Gram matrix and a mask with rows of all kinds, one that keeps nothing and one that keeps all."""
    problem = make_problem(kind, seed, dtype=dtype)
    gram, scale = unit_diagonal(problem.gram)
    target = problem.target * scale
    keep = keep_largest(target.abs().flatten(), target.numel() // 2).view_as(target)
    keep[3], keep[4] = False, True
    return target, gram, keep


def ridged_error(weight, target, gram, ridge=RIDGE):
    return row_energies(weight - target, gram) + ridge * (weight - target).square().sum(1)


def least_squares(target, gram, keep, ridge):
    """The rows' minima by numpy's least squares on a square root of the Gram matrix."""
    values, vectors = np.linalg.eigh(gram)
    inputs = np.concatenate([np.sqrt(np.maximum(values, 0))[:, None] * vectors.T, ridge**0.5 * np.eye(len(gram))])
    found = np.zeros_like(target)
    for row, kept in enumerate(keep):
        found[row, kept] = np.linalg.lstsq(inputs[:, kept], inputs @ target[row], rcond=None)[0]
    return found


@EVERY_KIND
@pytest.mark.parametrize("refit", [conjugate_refit, guarded_refit])
def test_many_steps_come_to_the_exact_minimum(kind, refit):
    target, gram, keep = unit_problem(kind)
    exact = exact_refit(target, gram, keep, RIDGE)
    np.testing.assert_allclose(exact, least_squares(target.numpy(), gram.numpy(), keep.numpy(), RIDGE), atol=1e-10)
    found = refit(target, gram, keep, torch.where(keep, 0.5 * target, 0.0), 200, RIDGE)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-9)


@EVERY_KIND
def test_no_step_raises_the_ridged_error_of_any_row(kind):
    target, gram, keep = unit_problem(kind)
    start = torch.where(keep, target, 0.0)
    errors = [ridged_error(conjugate_refit(target, gram, keep, start, n, RIDGE), target, gram) for n in range(15)]
    assert all(bool((after <= before * (1 + 1e-12) + 1e-12).all()) for before, after in pairwise(errors))
    assert float(errors[-1].sum()) < 0.99 * float(errors[0].sum())


@EVERY_KIND
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_a_guarded_refit_is_never_worse_than_the_mask_however_bad_its_start(kind, steps):
    target, gram, keep = unit_problem(kind)
    plain = torch.where(keep, target, 0.0)
    bad = torch.where(keep, torch.randn(target.shape, generator=torch.Generator().manual_seed(5)), 0.0)
    for start in (plain, bad, 1e3 * bad):
        found = guarded_refit(target, gram, keep, start.double(), steps, RIDGE)
        for ridge in (0.0, RIDGE):
            limit = ridged_error(plain, target, gram, ridge)
            assert bool((ridged_error(found, target, gram, ridge) <= limit * (1 + 1e-9) + 1e-12).all())


def test_a_guarded_refit_is_not_worse_than_a_good_start_either():
    target, gram, keep = unit_problem()
    start = exact_refit(target, gram, keep, RIDGE)
    found = guarded_refit(target, gram, keep, start, 0, RIDGE)
    torch.testing.assert_close(found, start)


@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_without_weights_stay_empty_and_whole_rows_stay_as_they_are(kind, dtype):
    target, gram, keep = unit_problem(kind, dtype=dtype)
    for refit in (conjugate_refit, guarded_refit):
        found = refit(target, gram, keep, torch.where(keep, target, 0.0), 10, RIDGE)
        assert bool(torch.isfinite(found).all())
        assert bool((found[~keep] == 0).all())
        assert torch.equal(found[4], target[4])


def test_weights_of_dead_inputs_stay_as_they_are():
    target, gram, keep = unit_problem("dead_inputs")
    dead = make_problem("dead_inputs").gram.diagonal() == 0
    kept = torch.where(keep, target, 0.0)
    found = conjugate_refit(target, gram, keep, kept, 60, RIDGE)
    assert bool(dead.any())
    torch.testing.assert_close(found[:, dead], kept[:, dead], rtol=1e-9, atol=1e-12)


def test_a_singular_system_is_solved_with_a_ridge_and_refused_without():
    target, gram, keep = unit_problem("few_tokens")
    assert int(torch.linalg.matrix_rank(gram)) < len(gram)
    expected = least_squares(target.numpy(), gram.numpy(), keep.numpy(), 0.01)
    np.testing.assert_allclose(exact_refit(target, gram, keep, 0.01), expected, rtol=1e-6, atol=1e-8)
    with pytest.raises(NotPositiveDefiniteError, match="raise the ridge"):
        exact_refit(target, -gram, keep, 0.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_the_kernel_makes_the_step_that_the_plain_code_makes(dtype, tolerance):
    target, gram, keep = unit_problem(dtype=dtype)
    weight = torch.where(keep, target, 0.0)
    residual = ((target - weight) @ gram).mul_(keep)
    state = [weight, residual, residual.clone(), residual.square().sum(1)]
    plain, fused, shared = ([part.clone() for part in state] for _ in range(3))
    for _ in range(4):
        image = plain[2] @ gram
        plain_step(image.clone(), keep, RIDGE, *plain)
        conjugate_step(image.numpy(), keep.numpy(), RIDGE, *(part.numpy() for part in fused), threads=1)
        conjugate_step(image.numpy(), keep.numpy(), RIDGE, *(part.numpy() for part in shared), threads=3)
    for ours, theirs, alike in zip(fused, plain, shared, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
        assert torch.equal(ours, alike)


def test_many_rows_go_through_in_pieces_and_any_order_of_memory():
    generator = torch.Generator().manual_seed(0)
    _, gram, _ = unit_problem()
    target = torch.randn(700, len(gram), generator=generator, dtype=torch.float64)
    keep = torch.rand(target.shape, generator=generator) < 0.5
    start = torch.where(keep, target, 0.0)
    whole = conjugate_refit(target, gram, keep, start, 8, RIDGE)
    turned = conjugate_refit(target.T.clone().T, gram, keep.T.clone().T, start.T.clone().T, 8, RIDGE)
    torch.testing.assert_close(turned, whole)
    torch.testing.assert_close(conjugate_refit(target[600:], gram, keep[600:], start[600:], 8, RIDGE), whole[600:])
    assert torch.equal(start, torch.where(keep, target, 0.0))
