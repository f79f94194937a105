"""Numerical scores: the listing, the closed form and the box solve the problems they are for."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.linalg.box_qp import box_minimum
from stages.methods.units.newton import Newton, mask_hessian
from tests.helpers.structured_problems import make_units
from tests.reference import numerical

SEEDS = pytest.mark.parametrize("seed", range(4))
FORMS = pytest.mark.parametrize("form", ["closed", "penalty", "box"])


def random_hessian(width, seed, spread=1.0):
    """(WᵀW) ∘ G of inputs whose sizes spread over so many powers of ten."""
    random = np.random.default_rng(seed)
    sizes = 10 ** random.uniform(-spread / 2, spread / 2, width)
    x = random.standard_normal((3 * width, width)) @ (
        random.standard_normal((width, width)) / width**0.5 + np.eye(width)
    )
    return torch.from_numpy(numerical.mask_hessian(x * sizes, random.standard_normal((width, 2 * width))))


@SEEDS
@pytest.mark.parametrize("penalty", [0.1, 1000.0])
def test_the_penalty_form_is_the_listing(seed, penalty):
    problem, x = make_units(8, seed=seed)
    hessian = numerical.mask_hessian(x.numpy(), problem.dense.T.numpy()) / problem.tokens
    scale = np.diag(hessian).mean()
    expected = numerical.algorithm_1(
        x.numpy() / problem.tokens**0.5, problem.dense.T.numpy(), 0.7 * 8,
        penalty * scale * 1.01, 5, np.full(8, 0.3), 0.01 * scale,
    )  # fmt: skip
    found = Newton("penalty", penalty=penalty, iterations=3).mask(problem)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-8, atol=1e-10)


@SEEDS
def test_one_step_is_as_good_as_fifty(seed):
    problem, _ = make_units(20, seed=seed)
    torch.testing.assert_close(Newton("penalty", iterations=1).mask(problem), Newton("penalty").mask(problem))


@SEEDS
def test_the_penalty_form_tends_to_the_closed_form_as_the_penalty_grows(seed):
    problem, _ = make_units(20, seed=seed)
    exact = Newton().mask(problem)
    away = [float((Newton("penalty", penalty=10.0**power).mask(problem) - exact).abs().max()) for power in range(7)]
    assert all(later < before / 5 for before, later in itertools.pairwise(away[1:]))
    assert away[-1] < 1e-5 * float(exact.abs().max())


@SEEDS
@pytest.mark.parametrize("removed", [0.1, 0.3, 0.8])
def test_the_closed_form_meets_the_optimality_conditions(seed, removed):
    problem, _ = make_units(20, seed=seed)
    mask, hessian = Newton(removed=removed).mask(problem), mask_hessian(problem.dense, problem.gram, 0.01)
    slope = hessian @ (1 - mask)
    assert float(mask.sum()) == pytest.approx((1 - removed) * 20)
    torch.testing.assert_close(slope, slope.mean().expand(20), rtol=1e-8, atol=0)
    np.testing.assert_allclose(mask.numpy(), numerical.closed(hessian.numpy(), (1 - removed) * 20), rtol=1e-8)


def test_the_order_of_the_closed_form_does_not_depend_on_how_much_is_removed():
    problem, _ = make_units(30)
    orders = [Newton(removed=removed)(problem).argsort().tolist() for removed in (0.05, 0.3, 0.9)]
    assert orders[0] == orders[1] == orders[2]


@SEEDS
@pytest.mark.parametrize("total", [0.2, 1.5, 3.0, 4.9])
def test_the_box_is_the_best_of_all_sets_of_bounds(seed, total):
    hessian = random_hessian(5, seed)
    np.testing.assert_allclose(box_minimum(hessian, total).numpy(), numerical.box(hessian.numpy(), total), atol=1e-7)


@SEEDS
@pytest.mark.parametrize("share", [0.003, 0.3, 0.7, 0.997])
@pytest.mark.parametrize("spread", [0.5, 6.0])
def test_the_box_meets_its_optimality_conditions(seed, share, spread):
    hessian = random_hessian(40, seed, spread)
    u = box_minimum(hessian, share * 40)
    assert bool((u >= 0).all() and (u <= 1).all())
    assert float(u.sum()) == pytest.approx(share * 40, rel=1e-9)
    slope = hessian @ u / hessian.diagonal().mean()
    low, high = u < 1e-4, u > 1 - 1e-4
    free = ~(low | high)
    price = slope[free].mean() if bool(free.any()) else slope[low].min()
    torch.testing.assert_close(slope[free], price.expand(int(free.sum())), rtol=0, atol=1e-6)
    assert bool((slope[low] >= price - 1e-6).all())
    assert bool((slope[high] <= price + 1e-6).all())


def test_inside_the_box_its_solution_is_the_closed_form():
    random = torch.Generator().manual_seed(0)
    near = torch.randn(30, 30, generator=random, dtype=torch.float64) / 30
    hessian = torch.eye(30, dtype=torch.float64) + near @ near.T
    exact = 1 - torch.from_numpy(numerical.closed(hessian.numpy(), 0.6 * 30))
    assert 0 < float(exact.min()) < float(exact.max()) < 1
    torch.testing.assert_close(box_minimum(hessian, 0.4 * 30), exact, rtol=1e-8, atol=1e-8)


@FORMS
def test_a_mask_does_not_depend_on_the_units_of_activations_or_weights(form):
    problem, _ = make_units(24)
    newton = Newton(form)
    mask = newton.mask(problem)
    for other in (replace(problem, gram=1e6 * problem.gram), replace(problem, dense=1e-3 * problem.dense)):
        torch.testing.assert_close(newton.mask(other), mask, rtol=1e-6, atol=1e-8)


@FORMS
def test_a_heads_score_is_the_mean_of_its_channels(form):
    problem, _ = make_units(6, width=4)
    mask, scores = Newton(form).mask(problem), Newton(form)(problem)
    for columns, score in zip(problem.columns.tolist(), scores.tolist(), strict=True):
        assert score == pytest.approx(sum(float(mask[column]) for column in columns) / 4)


@FORMS
def test_dead_inputs_go_first(form):
    problem, _ = make_units(12)
    gram = problem.gram.clone()
    dead = int(problem.columns[7])
    gram[dead], gram[:, dead] = 0, 0
    assert int(Newton(form)(replace(problem, gram=gram)).argmin()) == 7


@FORMS
def test_where_nothing_comes_out_every_unit_may_go(form):
    problem, _ = make_units(12)
    assert not Newton(form)(replace(problem, dense=torch.zeros_like(problem.dense))).any()


def test_without_damping_a_dead_input_is_told():
    problem, _ = make_units(12)
    gram = problem.gram.clone()
    gram[3], gram[:, 3] = 0, 0
    with pytest.raises(NotPositiveDefiniteError, match=r"raise methods\.newton\.damping"):
        Newton(damping=0)(replace(problem, gram=gram))


@pytest.mark.parametrize(
    "settings",
    [
        {"removed": 0.0},
        {"removed": 1.0},
        {"damping": -1.0},
        {"penalty": float("inf")},
        {"penalty": 0.0},
        {"iterations": 0},
    ],
)
def test_settings_out_of_range_are_named(settings):
    with pytest.raises(ParameterError, match=next(iter(settings))):
        Newton(**settings)
