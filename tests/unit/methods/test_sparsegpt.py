"""SparseGPT beyond the laws: float32 against the float64 reference, tiles, failures told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.linalg.error import relative_error
from stages.linalg.factor import inverse_factor
from stages.methods.linear.contract import Budget
from stages.methods.linear.sparsegpt import SparseGpt
from tests.helpers.problems import KINDS, make_problem
from tests.reference import sparsegpt as reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_float32_error_is_within_a_ten_thousandth_of_the_reference(kind, seed):
    problem = make_problem(kind, seed, rows=(40,), width=72)
    exact = make_problem(kind, seed, rows=(40,), width=72, dtype=torch.float64)
    solution = SparseGpt(tile=24)(problem, Budget(0.5))
    weight, _ = reference.solve(exact.target.numpy(), exact.gram.numpy(), tile=24)
    (expected,) = relative_error(torch.from_numpy(weight), exact.target, exact.gram, exact.rows)
    (found,) = relative_error(solution.weight.double(), exact.target, exact.gram, exact.rows)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("tile", [1, 7, 16, 24, 48, 500])
def test_any_tile_agrees_with_the_reference(tile):
    problem = make_problem(rows=(20,), dtype=torch.float64)
    solution = SparseGpt(tile=tile)(problem, Budget(0.5))
    weight, keep = reference.solve(problem.target.numpy(), problem.gram.numpy(), tile=tile)
    assert torch.equal(solution.keep, torch.from_numpy(keep))
    torch.testing.assert_close(solution.weight, torch.from_numpy(weight))


@pytest.mark.parametrize("scope", SparseGpt.scopes)
@pytest.mark.parametrize("sparsity", [0.3, 0.5])
@pytest.mark.parametrize("lazy", ["auto", 1, 7])
def test_a_mask_for_every_column_agrees_with_the_reference(scope, sparsity, lazy):
    problem = make_problem(rows=(20,), dtype=torch.float64)
    solution = SparseGpt(selection="column", lazy=lazy)(problem, Budget(sparsity, scope))
    weight, keep = reference.solve(problem.target.numpy(), problem.gram.numpy(), scope, sparsity, selection="column")
    assert torch.equal(solution.keep, torch.from_numpy(keep))
    torch.testing.assert_close(solution.weight, torch.from_numpy(weight))
    assert (int(solution.keep.sum()),) == Budget(sparsity, scope).kept_counts((20,), 48)


def test_a_mask_for_every_column_takes_the_same_share_of_each():
    solution = SparseGpt(selection="column")(make_problem(rows=(20,)), Budget(0.3))
    assert set(solution.keep.sum(0).tolist()) == {14}


@pytest.mark.parametrize("lazy", [1, 3, 16, 20, 48, 500])
@pytest.mark.parametrize("tile", [1, 16, 24, 128])
@pytest.mark.parametrize("groups", [None, (2, 4)])
def test_how_lazy_updates_are_does_not_change_the_result(lazy, tile, groups):
    problem, budget = make_problem(dtype=torch.float64), Budget(0.5, groups=groups)
    expected = SparseGpt(tile=tile)(problem, budget)
    found = SparseGpt(tile=tile, lazy=lazy)(problem, budget)
    assert torch.equal(found.keep, expected.keep)
    torch.testing.assert_close(found.weight, expected.weight)


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
def test_the_factor_is_upper_triangular_and_inverts_the_gram(width):
    problem = make_problem(rows=(1,), width=width, dtype=torch.float64)
    upper, damping, _ = inverse_factor(problem.gram, 0.01)
    damped = problem.gram / problem.gram.diagonal().mean() + damping * torch.eye(width)
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ damped, torch.eye(width, dtype=torch.float64))


@pytest.mark.parametrize("setting", [{"tile": 0}, {"lazy": 0}, {"damping": -1.0}])
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ParameterError, match=f"{next(iter(setting))}: expected"):
        SparseGpt(**setting)


def test_damping_that_had_to_be_raised_is_told():
    problem = make_problem("few_tokens")
    broken = replace(problem, gram=problem.gram - 0.05 * problem.gram.diagonal().mean() * torch.eye(48))
    solution = SparseGpt(damping=0.01)(broken, Budget(0.5))
    assert (solution.damping, solution.attempts) == (0.1, 2)


def test_a_gram_that_no_damping_helps_is_refused_with_advice():
    problem = make_problem()
    with pytest.raises(NotPositiveDefiniteError, match="use more calibration tokens than 48"):
        SparseGpt()(replace(problem, gram=problem.gram - 0.5 * torch.ones(48, 48)), Budget(0.5))


def test_inputs_that_are_all_zero_are_refused_with_advice():
    problem = make_problem()
    with pytest.raises(NotPositiveDefiniteError, match="inputs are all zero"):
        SparseGpt()(replace(problem, gram=torch.zeros(48, 48)), Budget(0.5))
