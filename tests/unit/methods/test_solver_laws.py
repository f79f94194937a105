"""Laws that every layer-wise method passes, because its file name enrols it."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.linalg.masks import satisfies_groups
from stages.methods import registry
from stages.methods.linear.contract import Budget, relative_errors
from stages.params.yamlfile import read_yaml
from tests.helpers.committed import ROOT
from tests.helpers.problems import KINDS, diagonal_problem, make_problem

EVERY_SOLVER = pytest.mark.parametrize("name", registry.names("linear"))
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def scopes_of(name):
    return [scope for scope in registry.find(name).settings.scopes if scope != "model"]


@pytest.mark.parametrize("name", registry.names())
def test_params_yaml_shows_every_setting_with_its_default(name):
    shown = read_yaml(ROOT / "params.yaml")["methods"][name]
    assert shown == registry.settings_of(name)


@EVERY_SOLVER
@pytest.mark.parametrize("sparsity", [0.0, 0.01, 0.5, 0.777, 1.0])
def test_the_count_that_is_kept_is_exact(name, sparsity):
    problem = make_problem()
    for scope in scopes_of(name):
        budget = Budget(sparsity, scope)
        solution = registry.load(name)(problem, budget)
        kept = tuple(int(part.sum()) for part in solution.keep.split(problem.rows))
        assert kept == budget.kept_counts(problem.rows, problem.target.shape[1])
        if scope == "row":
            assert len(set(solution.keep.sum(1).tolist())) == 1
        assert bool((solution.weight[~solution.keep] == 0).all())
        assert not bool(solution.weight[~solution.keep].signbit().any())


@EVERY_SOLVER
def test_counts_that_a_ranking_has_set_are_kept(name):
    if "linear" not in scopes_of(name):
        pytest.skip(f"{name} works within rows only")
    problem = make_problem()
    solution = registry.load(name)(problem, Budget(0.5, "linear", kept=(700, 3)))
    assert [int(part.sum()) for part in solution.keep.split(problem.rows)] == [700, 3]


@EVERY_SOLVER
@pytest.mark.parametrize("groups", [(2, 4), (1, 4), (4, 8), (3, 3)])
def test_no_group_keeps_more_than_n_of_m(name, groups):
    problem = make_problem()
    solution = registry.load(name)(problem, Budget(0.5, groups=groups))
    assert satisfies_groups(solution.keep, *groups)
    assert int(solution.keep.sum()) == problem.target.numel() * groups[0] // groups[1]


@EVERY_SOLVER
def test_at_sparsity_zero_the_dense_weight_comes_back(name):
    problem = make_problem()
    solution = registry.load(name)(problem, Budget(0.0, scopes_of(name)[0]))
    assert torch.equal(solution.weight, problem.target)
    assert relative_errors(problem, solution.weight) == (0.0, 0.0)


@EVERY_SOLVER
def test_the_result_does_not_depend_on_the_units_of_the_activations(name):
    problem = make_problem(dtype=torch.float64)
    rescaled = replace(problem, gram=1e4 * problem.gram, mean=1e2 * problem.mean)
    solver, budget = registry.load(name), Budget(0.5, scopes_of(name)[0])
    torch.testing.assert_close(solver(problem, budget).weight, solver(rescaled, budget).weight)


@EVERY_SOLVER
@EVERY_KIND
def test_inputs_are_left_as_they_are(name, kind):
    problem, same = make_problem(kind), make_problem(kind)
    registry.load(name)(problem, Budget(0.5))
    assert torch.equal(problem.target, same.target)
    assert torch.equal(problem.gram, same.gram)


@EVERY_SOLVER
@EVERY_KIND
def test_the_error_that_is_told_is_the_error_that_is_there(name, kind):
    problem = make_problem(kind)
    solution = registry.load(name)(problem, Budget(0.5))
    delta = (solution.weight - problem.target).double().numpy()
    gram, dense = problem.gram.double().numpy(), problem.target.double().numpy()
    parts = np.split(np.arange(len(delta)), [problem.rows[0]])
    for part, told in zip(parts, relative_errors(problem, solution.weight), strict=True):
        lost = np.trace(delta[part] @ gram @ delta[part].T)
        assert told == pytest.approx(lost / np.trace(dense[part] @ gram @ dense[part].T), rel=1e-4)


@EVERY_SOLVER
def test_with_a_diagonal_gram_kept_weights_do_not_move(name):
    problem = diagonal_problem()
    solution = registry.load(name)(problem, Budget(0.5))
    torch.testing.assert_close(solution.weight, torch.where(solution.keep, problem.target, 0.0))


@EVERY_SOLVER
@EVERY_KIND
@pytest.mark.parametrize("seed", range(4))
def test_never_worse_than_the_mask_without_refit(name, kind, seed):
    problem = make_problem(kind, seed)
    solution = registry.load(name)(problem, Budget(0.5))
    masked = torch.where(solution.keep, problem.target, 0.0)
    found, plain = relative_errors(problem, solution.weight), relative_errors(problem, masked)
    assert all(ours <= theirs * (1 + 1e-5) for ours, theirs in zip(found, plain, strict=True))


@EVERY_SOLVER
def test_linears_solved_together_come_out_as_if_solved_alone(name):
    problem = make_problem(dtype=torch.float64)
    solver, budget = registry.load(name), Budget(0.5, scopes_of(name)[0])
    together = solver(problem, budget).weight.split(problem.rows)
    for part, alone in zip(together, problem.target.split(problem.rows), strict=True):
        single = replace(problem, target=alone, rows=(len(alone),))
        torch.testing.assert_close(part, solver(single, budget).weight)


@EVERY_SOLVER
@EVERY_KIND
@pytest.mark.parametrize(
    ("sparsity", "groups"), [(0.5, None), (0.7, None), (0.5, (2, 4))], ids=["half", "seven-tenths", "2:4"]
)
def test_agrees_with_the_plain_float64_reference(name, kind, sparsity, groups):
    reference = importlib.import_module(f"tests.reference.{name}")
    problem = make_problem(kind, rows=(32,), dtype=torch.float64)
    for scope in scopes_of(name):
        solution = registry.load(name)(problem, Budget(sparsity, scope, groups))
        weight, keep = reference.solve(problem.target.numpy(), problem.gram.numpy(), scope, sparsity, groups)
        assert np.array_equal(solution.keep.numpy(), keep)
        np.testing.assert_allclose(solution.weight.numpy(), weight, rtol=1e-7, atol=1e-9)
