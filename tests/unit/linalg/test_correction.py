"""Corrected targets: least squares against what the linears lack, never worse where it was not fitted."""

from __future__ import annotations

import pytest
import torch

from stages.linalg.correction import Correction, OutputErrorMoments, corrected_target

ROWS = (5, 3)


def tokens(count, seed, width=12, noise=0.3):
    """Inputs of the pruned and of the dense model for the same tokens."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(count, width, generator=generator, dtype=torch.float64)
    mixed = torch.eye(width, dtype=torch.float64) + 0.2 * torch.ones(width, width, dtype=torch.float64)
    return dense @ mixed + noise * torch.randn(count, width, generator=generator, dtype=torch.float64), dense


def shortfall(weight, x, x0):
    return OutputErrorMoments(x.T @ x / len(x), x.T @ ((x0 - x) @ weight.T) / len(x))


def error(weight, dense, x, x0):
    return float((x @ weight.T - x0 @ dense.T).square().sum())


def made(seed=0, noise=0.3):
    weight = torch.randn(sum(ROWS), 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fit, held = tokens(400, seed + 1, noise=noise), tokens(100, seed + 2, noise=noise)
    return weight, fit, held


def test_the_full_correction_is_least_squares():
    weight, fit, held = made()
    target, found = corrected_target(weight, shortfall(weight, *fit), shortfall(weight, *fit), ROWS, 1.0, [1e-12])
    expected = torch.linalg.lstsq(fit[0], fit[1] @ weight.T).solution.T
    assert [one.strength for one in found] == pytest.approx([1.0, 1.0])
    torch.testing.assert_close(target, expected)
    assert error(target, weight, *held) < error(weight, weight, *held)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_no_linear_is_worse_off_on_the_tokens_held_out(seed, share):
    weight, _, held = made(seed)
    few = tokens(14, seed + 9)  # hardly more than the width: the fit is mostly noise
    target, found = corrected_target(
        weight, shortfall(weight, *few), shortfall(weight, *held), ROWS, share, [0.01, 0.3]
    )
    assert all(one.strength >= 0 for one in found)
    for part, dense in zip(target.split(ROWS), weight.split(ROWS), strict=True):
        assert error(part, dense, *held) <= error(dense, dense, *held) * (1 + 1e-9)


def test_a_correction_that_points_the_wrong_way_is_not_made():
    weight, fit, held = made()
    against = shortfall(weight, *held)
    against = against._replace(cross=-against.cross)
    target, found = corrected_target(weight, shortfall(weight, *fit), against, ROWS, 0.5, [0.1])
    assert found == (Correction(), Correction())
    assert torch.equal(target, weight)


def test_inputs_that_are_dead_or_all_zero_are_left_alone():
    weight, (x, x0), held = made()
    x[:, 3], x0[:, 3] = 0, 0
    target, _ = corrected_target(weight, shortfall(weight, x, x0), shortfall(weight, *held), ROWS, 0.5, [0.1])
    assert bool(torch.isfinite(target).all())
    torch.testing.assert_close(target[:, 3], weight[:, 3])
    nothing = OutputErrorMoments(torch.zeros(12, 12, dtype=torch.float64), torch.zeros(12, 8, dtype=torch.float64))
    assert torch.equal(corrected_target(weight, nothing, nothing, ROWS, 0.5, [0.1])[0], weight)


def test_the_ridge_that_is_best_on_the_tokens_held_out_is_taken():
    weight, _, held = made()
    few = tokens(14, 9)
    ridges = [0.001, 0.1, 1.0, 10.0]
    _, found = corrected_target(weight, shortfall(weight, *few), shortfall(weight, *held), ROWS, 1.0, ridges)
    for i, one in enumerate(found):
        errors = {}
        for ridge in ridges:
            target, _ = corrected_target(weight, shortfall(weight, *few), shortfall(weight, *held), ROWS, 1.0, [ridge])
            errors[ridge] = error(target.split(ROWS)[i], weight.split(ROWS)[i], *held)
        assert one.ridge == min(errors, key=errors.__getitem__)
