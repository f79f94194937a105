"""SparseGPT beyond the laws: float32 against the float64 reference, tiles, failures told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.errors import NotPositiveDefiniteError
from stages.linalg.error import relative_error
from stages.solvers.contract import Budget
from stages.solvers.sparsegpt import SparseGpt
from tests.reference import sparsegpt as reference
from tests.unit.problems import KINDS, make_problem


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_float32_error_is_within_a_thousandth_of_the_reference(kind, seed):
    problem = make_problem(kind, seed, rows=(40,), width=72)
    exact = make_problem(kind, seed, rows=(40,), width=72, dtype=torch.float64)
    solution = SparseGpt(tile=24)(problem, Budget(0.5))
    weight, _ = reference.solve(exact.target.numpy(), exact.gram.numpy(), tile=24)
    (expected,) = relative_error(torch.from_numpy(weight), exact.target, exact.gram, exact.rows)
    (found,) = relative_error(solution.weight.double(), exact.target, exact.gram, exact.rows)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("tile", [1, 7, 16, 24, 48, 500])
def test_any_tile_agrees_with_the_reference(tile):
    problem = make_problem(rows=(20,), dtype=torch.float64)
    solution = SparseGpt(tile=tile)(problem, Budget(0.5))
    weight, keep = reference.solve(problem.target.numpy(), problem.gram.numpy(), tile=tile)
    assert torch.equal(solution.keep, torch.from_numpy(keep))
    torch.testing.assert_close(solution.weight, torch.from_numpy(weight))


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
