"""ADMM pruning with a fixed and a growing penalty, and ALPS."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.linalg.admm import admm_operator, admm_rhs, admm_rhs_plain, admm_update, admm_update_plain
from stages.linalg.inverse import LEAF
from stages.linalg.kernels import admm_cpu
from stages.linalg.masks import keep_largest, satisfies_groups
from stages.linalg.refit import exact_refit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods.linear.admm import Admm, partial_budget
from stages.methods.linear.alps import Alps, penalty_growth
from stages.methods.linear.contract import Budget, relative_errors
from stages.methods.linear.sparsegpt import SparseGpt
from tests.helpers.problems import KINDS, make_problem
from tests.reference import admm as reference
from tests.reference import alps as alps_reference

HALF = Budget(0.5)
BOTH = pytest.mark.parametrize(("solver", "plain"), [(Admm(), reference), (Alps(), alps_reference)])
PAPER = Admm(
    iterations=19,
    penalty=1.0,
    penalty_end=1.0,
    penalties=1,
    relaxation=1.0,
    selections=14,
    gradual=True,
    refine_steps=0,
)


def test_the_response_is_the_inverse_that_it_stands_for():
    generator = torch.Generator().manual_seed(0)
    for width in (1, 7, LEAF, 2 * LEAF + 77):
        x = torch.randn(width // 2 + 1, width, generator=generator, dtype=torch.float64)
        gram = unit_diagonal(x.T @ x).gram
        expected = 0.4 * np.linalg.inv(gram.numpy() + 0.5 * np.eye(width))
        np.testing.assert_allclose(admm_operator(gram, 0.1, 0.4), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("width", [8, 2 * LEAF])
def test_a_matrix_that_is_not_positive_definite_is_refused_with_advice(width):
    for bad in (-torch.eye(width), torch.full((width, width), torch.nan)):
        with pytest.raises(NotPositiveDefiniteError, match=r"raise\s+the method's ridge"):
            admm_operator(bad, 0.1, 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_plain_code_update_z_and_u_as_they_are_defined(dtype):
    generator = torch.Generator().manual_seed(0)
    target, w, total = torch.randn(3, 5, 33, generator=generator, dtype=dtype)
    keep, ratio, relaxation = torch.rand(5, 33, generator=generator) < 0.5, 0.7, 1.5
    z, u = keep * total, ~keep * total * ratio
    for turn, update in ((admm_rhs, admm_update), (admm_rhs_plain, admm_update_plain)):
        right, after = torch.empty_like(target), total.clone()
        assert turn(target, total, keep, ratio, right) is right
        update(target, w - target, after, keep, relaxation, ratio)
        torch.testing.assert_close(right, z - u - target)
        torch.testing.assert_close(after, relaxation * w + (1 - relaxation) * z + u)


def test_the_kernels_do_not_depend_on_the_number_of_threads():
    draw = np.random.default_rng(0)
    target, move, total = draw.standard_normal((3, 5, 33))
    keep, results = draw.random((5, 33)) < 0.5, []
    for threads in (1, 3, 9):
        right, after = np.empty_like(target), total.copy()
        admm_cpu.admm_rhs(target, total, keep, 0.7, right, threads)
        admm_cpu.admm_update(target, move, after, keep, 1.5, 0.7, threads)
        results.append(np.stack((right, after)))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_the_penalty_grows_geometrically_in_stages():
    penalties = Admm(iterations=12, selections=12, penalty=0.3, penalty_end=3.0, penalties=4).penalties_of_steps()
    assert penalties == sorted(penalties)
    np.testing.assert_allclose(penalties[::3], np.geomspace(0.3, 3.0, 4))
    assert len(set(penalties)) == 4
    assert set(PAPER.penalties_of_steps()) == {1.0}
    assert len(set(Admm(iterations=3, selections=3, penalties=9).penalties_of_steps())) == 3


def test_the_mask_before_the_first_step_is_that_of_the_scaled_weights():
    problem = make_problem(dtype=torch.float64)
    solution = Admm(iterations=4, selections=0)(problem, HALF)
    scores = problem.target.abs() * problem.gram.diagonal().sqrt()
    assert torch.equal(solution.keep, HALF.select(scores, problem.rows))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_mask_after_the_first_steps_is_the_references(steps):
    problem = make_problem(rows=(32,), dtype=torch.float64)
    settings = {"iterations": steps, "penalties": steps, "penalty": 0.4, "penalty_end": 2.0, "relaxation": 1.2}
    solution = Admm(selections=steps, **settings)(problem, HALF)
    weight, keep = reference.solve(problem.target.numpy(), problem.gram.numpy(), **settings)
    assert np.array_equal(solution.keep.numpy(), keep)
    np.testing.assert_allclose(solution.weight.numpy(), weight, rtol=1e-7, atol=1e-9)
    first = Admm(iterations=1, selections=0)(problem, HALF).keep
    assert not torch.equal(solution.keep, first)


def test_on_a_fixed_mask_many_steps_come_to_the_least_squares_weights():
    problem = make_problem(dtype=torch.float64)
    unit = unit_diagonal(problem.gram)
    steps = replace(PAPER, iterations=2000, selections=0, gradual=False)(problem, HALF)
    exact = exact_refit(problem.target * unit.scale, unit.gram, steps.keep, PAPER.ridge) / unit.scale
    torch.testing.assert_close(steps.weight, exact, rtol=1e-6, atol=1e-8)


def test_a_gradual_budget_grows_to_the_whole_one():
    rows, width = (24, 8), 48
    for budget in (Budget(0.7), Budget(0.7, "row"), Budget(0.5, groups=(2, 8)), Budget(0.5, kept=(700, 3))):
        counts = [
            partial_budget(budget, share, rows, width).kept_counts(rows, width) for share in (0.0, 0.2, 0.5, 0.9, 1.0)
        ]
        assert counts[0] == tuple(count * width for count in rows)
        assert counts[-1] == budget.kept_counts(rows, width)
        assert all(more[i] >= less[i] for more, less in pairwise(counts) for i in range(2))
        assert len(set(counts)) >= 4
    assert partial_budget(Budget(0.5, kept=(700, 3)), 0.5, rows, width).kept == (24 * 48 - 226, 8 * 48 - 191)


@pytest.mark.parametrize("budget", [HALF, Budget(0.5, "row"), Budget(0.5, groups=(2, 4)), Budget(0.5, kept=(700, 3))])
@pytest.mark.parametrize("solver", [PAPER, Admm(gradual=True)])
def test_the_papers_gradual_variant_ends_with_the_exact_counts(solver, budget):
    problem = make_problem()
    solution = solver(problem, budget)
    kept = tuple(int(part.sum()) for part in solution.keep.split(problem.rows))
    assert kept == budget.kept_counts(problem.rows, problem.target.shape[1])


@pytest.mark.parametrize("solver", [Admm(), Alps(), PAPER])
def test_two_of_four_stay_in_every_group(solver):
    problem = make_problem()
    solution = solver(problem, Budget(0.5, groups=(2, 4)))
    assert bool((solution.keep.unflatten(1, (-1, 4)).sum(-1) == 2).all())
    assert satisfies_groups(solution.weight != 0, 2, 4)
    alone = keep_largest(problem.target.abs().unflatten(1, (-1, 4)), 2).flatten(1)
    assert not torch.equal(solution.keep, alone)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_float32_reconstructs_as_well_as_the_float64_reference(solver, plain, kind, seed):
    exact = make_problem(kind, seed, rows=(32,), dtype=torch.float64)
    weight, _ = plain.solve(exact.target.numpy(), exact.gram.numpy())
    problem = make_problem(kind, seed, rows=(32,))
    found = solver(problem, HALF).weight.double()
    (ours,), (theirs,) = relative_errors(exact, found), relative_errors(exact, torch.from_numpy(weight))
    assert ours == pytest.approx(theirs, rel=1e-4)


@pytest.mark.parametrize("solver", [Admm(), Alps()])
def test_the_error_is_below_that_of_pruning_column_by_column(solver):
    problems = [make_problem("correlated", seed, rows=(64,), width=96) for seed in range(4)]
    ours = sum(relative_errors(problem, solver(problem, HALF).weight)[0] for problem in problems)
    theirs = sum(relative_errors(problem, SparseGpt()(problem, HALF).weight)[0] for problem in problems)
    assert ours < 0.95 * theirs


def test_the_penalty_of_alps_grows_by_how_much_of_the_mask_has_changed():
    assert [penalty_growth(changed) for changed in (0.5, 0.1, 0.0999, 0.005, 0.0049, 0.0)] == [
        1.3,
        1.3,
        1.2,
        1.2,
        1.1,
        1.1,
    ]


def test_alps_stops_at_the_first_look_that_finds_the_mask_settled():
    problem = make_problem(dtype=torch.float64)
    at_once, three = Alps(tolerance=10.0)(problem, HALF), Alps(iterations=3)(problem, HALF)
    assert torch.equal(at_once.weight, three.weight)
    settled, longer = Alps(tolerance=0.0)(problem, HALF), Alps(tolerance=0.0, iterations=600)(problem, HALF)
    assert torch.equal(settled.weight, longer.weight)
    assert not torch.equal(settled.keep, three.keep)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Admm, "iterations", 0), (Admm, "penalties", 0), (Admm, "penalty", 0.0), (Admm, "penalty_end", float("inf")),
        (Admm, "relaxation", 2.0), (Admm, "relaxation", 0.9), (Admm, "selections", 11), (Admm, "ridge", -0.1),
        (Admm, "refine_steps", -1), (Alps, "iterations", 0), (Alps, "penalty", 0.0), (Alps, "tolerance", -1.0),
        (Alps, "ridge", float("nan")), (Alps, "refine_steps", -1),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(kind, name, value):
    with pytest.raises(ParameterError, match=f"^{name}: expected"):
        kind(**{name: value})
