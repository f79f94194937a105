"""Iterative hard thresholding, plain and accelerated: descent, schedules, both as the plain listing has them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.errors import ParameterError
from stages.linalg.hard_threshold import Quadratic, descend, iterate_at_plain
from stages.linalg.kernels import threshold_cpu
from stages.linalg.schedule import SparsityPattern, ThresholdStep, cubic_count, falling_counts, same_pattern
from stages.linalg.sparse_fit import Recipe, sparse_fit
from stages.linalg.spectral import largest_eigenvalue
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods import registry
from stages.methods.linear.contract import Budget, relative_errors
from tests.helpers.problems import KINDS, make_problem
from tests.reference import iht as reference

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
BOTH = pytest.mark.parametrize("momentum", [False, True], ids=["iht", "maiht"])
DEFAULTS = Recipe("projected", 40, 0.1, "cg", 10)


def quadratic_of(problem, mu=0.1):
    unit = unit_diagonal(problem.gram)
    ridged = unit.gram + mu * torch.eye(len(unit.gram), dtype=unit.gram.dtype)
    return Quadratic(problem.target * unit.scale, ridged, 0.95 / float(torch.linalg.eigvalsh(ridged)[-1]))


def loss_of(quadratic, weight):
    offset = weight - quadratic.target
    return float((offset @ quadratic.gram * offset).sum()) / 2


def never_rises(values):
    return all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(values))


@EVERY_KIND
@BOTH
@pytest.mark.parametrize("level", [0.2, 1.0])
def test_at_a_fixed_penalty_the_objective_never_rises(kind, momentum, level):
    quadratic = quadratic_of(make_problem(kind, dtype=torch.float64))
    price = torch.full((1, 1), level**2 / (2 * quadratic.alpha), dtype=torch.float64)
    cut = ThresholdStep(lambda scores: scores > level, price)
    point, trace = descend(quadratic, lambda step, keep: cut, 60, momentum, bound=False)
    assert never_rises([step.objective for step in trace])
    assert trace[-1].objective < trace[0].objective
    weight = point.offset + quadratic.target
    assert trace[-1].objective == pytest.approx(loss_of(quadratic, weight) + float(price) * int((weight != 0).sum()))


@EVERY_KIND
@BOTH
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "pattern",
    [SparsityPattern(32, 700), SparsityPattern(32, 20, by_row=True), SparsityPattern(32, 768, groups=(2, 4))],
    ids=["linear", "row", "2:4"],
)
def test_at_a_fixed_count_the_objective_never_rises(kind, momentum, bound, pattern):
    quadratic = quadratic_of(make_problem(kind, dtype=torch.float64))
    point, trace = descend(quadratic, same_pattern(pattern), 60, momentum, bound)
    assert never_rises([step.objective for step in trace])
    assert trace[-1].objective < trace[0].objective
    assert trace[-1].objective == pytest.approx(loss_of(quadratic, point.offset + quadratic.target))
    assert {step.branch for step in trace} <= ({"momentum", "plain"} if momentum else {"plain"})


@EVERY_KIND
@BOTH
@pytest.mark.parametrize("schedule", ["paper", "projected"])
@pytest.mark.parametrize(
    ("scope", "sparsity", "groups"),
    [("linear", 0.5, None), ("linear", 0.8, None), ("row", 0.6, None), ("linear", 0.5, (2, 4))],
)
def test_every_step_is_that_of_the_plain_listing(kind, momentum, schedule, scope, sparsity, groups):
    problem = make_problem(kind, rows=(32,), dtype=torch.float64)
    dense, gram = problem.target.numpy(), problem.gram.numpy()
    for refine, steps in (("gradient", 12), ("cg", 6), ("none", 0)):
        recipe = Recipe(schedule, 20, 0.1, refine, steps)
        count = Budget(sparsity, scope, groups).kept_counts((32,), 48)[0]
        pattern = SparsityPattern(32, count // 32 if scope == "row" else count, scope == "row", groups)
        found = sparse_fit(problem.target, problem.gram, (pattern,), recipe, momentum)
        settings = {"schedule": schedule, "iterations": 20, "refine": refine, "refine_steps": steps}
        weight, keep, trace = reference.solve_traced(dense, gram, scope, sparsity, groups, momentum, **settings)
        assert np.array_equal(found.keep.numpy(), keep)
        np.testing.assert_allclose(found.weight.numpy(), weight, rtol=1e-7, atol=1e-9)
        for step, (objective, kept, _, penalty) in zip(found.traces[0], trace, strict=True):
            assert step.objective == pytest.approx(objective)
            assert step.kept == kept
            assert step.penalty == (None if penalty is None else pytest.approx(penalty))


@pytest.mark.parametrize("seed", range(10))
def test_in_float32_the_error_is_that_of_float64(seed):
    kind = KINDS[seed % len(KINDS)]
    problem = make_problem(kind, seed, rows=(96,), width=96)
    weight, _ = reference.solve(problem.target.double().numpy(), problem.gram.double().numpy(), momentum=True)
    exact = replace(problem, target=problem.target.double(), gram=problem.gram.double())
    found = registry.load("maiht")(problem, Budget(0.5)).weight.double()
    assert relative_errors(exact, found) == pytest.approx(relative_errors(exact, torch.from_numpy(weight)), rel=1e-4)


@BOTH
@pytest.mark.parametrize("sparsity", [0.0, 0.01, 0.5, 0.777, 1.0])
def test_the_count_is_exact_with_the_papers_penalty_too(momentum, sparsity):
    problem = make_problem()
    solver = registry.load("maiht" if momentum else "iht", {"schedule": "paper"})
    for budget in (Budget(sparsity), Budget(sparsity, "row"), Budget(0.5, groups=(2, 4))):
        keep = solver(problem, budget).keep
        assert tuple(int(part.sum()) for part in keep.split(problem.rows)) == budget.kept_counts(problem.rows, 48)


def test_what_the_papers_penalty_cuts_too_much_is_filled_up():
    problem = make_problem(rows=(32,), dtype=torch.float64)
    recipe = Recipe("paper", 80, 0.1, "none", 0)
    found = sparse_fit(problem.target, problem.gram, (SparsityPattern(32, 300),), recipe, momentum=True)
    assert found.traces[0][-1].kept < 300
    assert int(found.keep.sum()) == 300


@pytest.mark.parametrize("seed", range(4))
def test_momentum_comes_further_in_as_many_steps(seed):
    problem = make_problem("correlated", seed, rows=(64,), width=96, dtype=torch.float64)
    quadratic, rule = quadratic_of(problem), same_pattern(SparsityPattern(64, 3072))
    ends = [descend(quadratic, rule, 60, momentum, bound=True)[1][-1].objective for momentum in (False, True)]
    assert ends[1] < ends[0]


@pytest.mark.parametrize("name", ["iht", "maiht"])
def test_moving_weights_while_cutting_beats_cutting_at_once(name):
    for seed in range(4):
        problem = make_problem("correlated", seed, rows=(64,), width=96)
        few, many = (registry.load(name, {"iterations": steps})(problem, Budget(0.5)) for steps in (1, 40))
        assert relative_errors(problem, many.weight) < relative_errors(problem, few.weight)


def test_counts_fall_on_the_cubic_schedule_and_end_exactly():
    counts = [cubic_count(1000, 300, step, 20) for step in range(21)]
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (1000, 300)
    assert counts[10] == 300 + int(700 / 8)


def test_on_the_way_to_n_of_m_every_group_keeps_its_own():
    scores = torch.rand(32, 48)
    rule = falling_counts(SparsityPattern(32, 768, groups=(2, 4)), 48, 10)
    before = 32 * 48
    for step in range(10):
        keep = rule(step, torch.ones(32, 48, dtype=torch.bool)).select(scores)
        assert int(keep.unflatten(1, (-1, 4)).sum(-1).min()) >= 2
        assert int(keep.sum()) == 768 + cubic_count(768, 0, step + 1, 10) <= before
        before = int(keep.sum())
    assert before == 768


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_passes_do_what_plain_tensor_operations_do(dtype):
    generator = torch.Generator().manual_seed(0)
    here, probe, before, target = (torch.randn(13, 37, generator=generator, dtype=dtype) for _ in range(4))
    keep, gram = torch.rand(13, 37, generator=generator) < 0.5, torch.eye(37, dtype=dtype) + 0.1
    arrays = (here.numpy(), probe.numpy(), before.numpy())
    expected = iterate_at_plain(Quadratic(target, gram, 0.3), here, keep)
    for threads in (1, 3):
        values, scores = threshold_cpu.extrapolate(*arrays, 0.7, 0.4, threads)
        torch.testing.assert_close(torch.from_numpy(values), here + 0.7 * (probe - here) + 0.4 * (here - before))
        assert np.array_equal(scores, np.abs(values))
        offset = threshold_cpu.offset_of(here.numpy(), keep.numpy(), target.numpy(), threads)
        ahead = offset @ gram.numpy()
        inner, square = threshold_cpu.gradient_step(offset, ahead, target.numpy(), 0.3, threads)
        torch.testing.assert_close(torch.from_numpy(offset), expected.offset)
        torch.testing.assert_close(torch.from_numpy(ahead), expected.ahead)
        assert inner.sum() / 2 == pytest.approx(expected.loss, rel=1e-5)
        assert square.sum() == pytest.approx(expected.square, rel=1e-5)
        dropped = threshold_cpu.dropped_square(here.numpy(), keep.numpy(), threads).sum()
        assert dropped == pytest.approx(float(here[~keep].square().sum()), rel=1e-5)
        lacking = threshold_cpu.threshold_gap(here.numpy(), 0.9, threads).sum()
        assert lacking == pytest.approx(float((0.81 - here.square()).clamp(min=0).sum()), rel=1e-5)


def test_the_result_does_not_depend_on_the_number_of_threads():
    problem = make_problem(rows=(60, 40), width=96, dtype=torch.float64)
    patterns, before = (SparsityPattern(60, 2000), SparsityPattern(40, 2500)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = sparse_fit(problem.target, problem.gram, patterns, DEFAULTS, momentum=True)
        torch.set_num_threads(3)
        shared = sparse_fit(problem.target, problem.gram, patterns, DEFAULTS, momentum=True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone.keep, shared.keep)
    torch.testing.assert_close(alone.weight, shared.weight)


@pytest.mark.parametrize("schedule", ["paper", "projected"])
def test_the_order_of_memory_does_not_matter(schedule):
    problem = make_problem(dtype=torch.float64)
    turned = replace(problem, target=problem.target.T.contiguous().T, gram=problem.gram.T)
    solver = registry.load("maiht", {"schedule": schedule})
    torch.testing.assert_close(solver(turned, Budget(0.5)).weight, solver(problem, Budget(0.5)).weight)


@EVERY_KIND
def test_the_largest_eigenvalue_is_found_without_the_others(kind):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        gram = unit_diagonal(make_problem(kind, width=96, dtype=dtype).gram).gram
        assert largest_eigenvalue(gram) == pytest.approx(float(torch.linalg.eigvalsh(gram)[-1]), rel=tolerance)


@pytest.mark.parametrize("matrix", [torch.eye(5), torch.full((3, 3), 2.0), torch.tensor([[4.0]])])
def test_the_largest_eigenvalue_of_simple_matrices(matrix):
    assert largest_eigenvalue(matrix) == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-6)


@pytest.mark.parametrize("name", ["iht", "maiht"])
@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"mu": -1.0}, {"refine_steps": -1}])
def test_settings_out_of_range_are_refused(name, wrong):
    with pytest.raises(ParameterError, match=rf"methods.{name}.{next(iter(wrong))}"):
        registry.load(name, wrong)
