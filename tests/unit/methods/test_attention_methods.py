"""What every method of the attention matrix keeps to, and what each of them is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stages.errors import ParameterError
from stages.methods import registry
from stages.methods.attention.contract import attention_error, batch_order
from stages.methods.linear.contract import Budget
from tests.helpers.attention_problems import make_attention
from tests.reference.attention_gd import learnt_masks
from tests.reference.attention_iht import thresholded

EVERY_METHOD = pytest.mark.parametrize("name", registry.names("attention"))
SCORES = ("moved", "mask", "weight")
QUICK = {"attention_gd": {"steps": 5}, "attention_iht": {"steps": 20, "warm": 5}}


def quick(name, **settings):
    return registry.load(name, QUICK[name] | settings)


@EVERY_METHOD
@pytest.mark.parametrize("sparsity", [0.0, 0.01, 0.5, 0.777, 1.0])
def test_the_count_of_each_linear_is_exact_and_the_rest_is_zero(name, sparsity):
    problem = make_attention()
    solution = quick(name)(problem, Budget(sparsity))
    for keep, rows in zip(solution.keep.split(problem.linear.rows), problem.linear.rows, strict=True):
        total = rows * problem.dense.shape[1]
        assert int(keep.sum()) == total - round(sparsity * total)
    assert not solution.weight[~solution.keep].any()


@EVERY_METHOD
@pytest.mark.parametrize(
    ("budget", "size", "count"), [(Budget(0.5, groups=(2, 4)), 4, 2), (Budget(0.25, "row"), 24, 18)]
)
def test_groups_and_rows_keep_what_they_are_told(name, budget, size, count):
    solution = quick(name)(make_attention(), budget)
    assert bool((solution.keep.unflatten(1, (-1, size)).sum(-1) == count).all())


@EVERY_METHOD
def test_inputs_stay_as_they_are_and_the_same_comes_out_again(name):
    problem = make_attention(dtype=torch.float32)
    before = [problem.dense.clone(), problem.linear.gram.clone(), *(batch.clone() for batch in problem.fit.given)]
    first, again = (quick(name)(problem, Budget(0.5)) for _ in range(2))
    assert torch.equal(first.weight, again.weight)
    after = [problem.dense, problem.linear.gram, *problem.fit.given]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert first.weight.dtype == torch.float32
    assert not first.weight.requires_grad


def test_single_precision_is_near_double():
    for seed in range(3):
        single, double = make_attention(seed, torch.float32), make_attention(seed)
        masks = [quick("attention_gd", steps=40).learnt_mask(problem)[1].double() for problem in (single, double)]
        torch.testing.assert_close(*masks, rtol=0.0, atol=0.05 * float(masks[1].std()))
        weights = [quick("attention_iht")(problem, Budget(0.5)).weight.double() for problem in (single, double)]
        errors = [attention_error(double.held, weight).total for weight in weights]
        assert errors[0] == pytest.approx(errors[1], rel=0.02)


def test_masks_are_the_references():
    problem = make_attention()
    query, key = problem.dense.split(problem.linear.rows)
    solver = registry.load("attention_gd", {"steps": 7, "penalty": 0.01, "step": 2.0, "batches": 0})
    expected = learnt_masks(torch.cat(problem.fit.given), query, key, 4, 2, 0.01, 2.0, 7, 0.9)
    alone, moved = solver.learnt_mask(problem)
    found = alone + moved
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert found.std() > 1e-3  # the loss was felt, not only the penalty
    weights = solver(problem, Budget(0.5)).weight
    assert torch.equal(weights[weights != 0], problem.dense[weights != 0])


def test_without_data_gradient_masks_shrink_alike():
    problem = make_attention()
    alone, moved = registry.load("attention_gd", {"steps": 1, "penalty": 0.1, "step": 0.5}).learnt_mask(problem)
    assert alone == pytest.approx(0.95)
    assert moved.abs().max() < 1e-12


def test_the_box_holds_and_scores_differ():
    problem = make_attention()
    settings = {"steps": 20, "penalty": 0.1, "step": 3.0}
    assert sum(registry.load("attention_gd", settings).learnt_mask(problem)).min() < 0
    mask = sum(registry.load("attention_gd", settings | {"box": True}).learnt_mask(problem))
    assert mask.min() >= -1e-15
    assert mask.max() <= 1 + 1e-15


def test_what_descent_moved_is_a_better_score_than_the_mask_and_than_size():
    for seed in range(3):
        problem = make_attention(seed)
        solutions = [registry.load("attention_gd", {"score": score})(problem, Budget(0.5)) for score in SCORES]
        errors = dict(zip(SCORES, (attention_error(problem.held, one.weight).total for one in solutions), strict=True))
        plain = registry.load("magnitude")(problem.linear, Budget(0.5))
        assert errors["moved"] < 0.85 * min(errors["mask"], attention_error(problem.held, plain.weight).total)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_thresholding_is_the_references(penalty):
    problem = make_attention()
    begin = registry.load("magnitude")(problem.linear, Budget(0.5))
    settings = {"start": "magnitude", "steps": 12, "warm": 4, "penalty": penalty}
    found = registry.load("attention_iht", settings)(problem, Budget(0.5))
    expected = thresholded(
        problem.fit.given, list(batch_order(3, 12, 0)), problem.dense.split(problem.linear.rows), (4, 2),
        problem.linear.gram, begin.weight, begin.keep, 0.02, 4, penalty,
    )  # fmt: skip
    assert attention_error(problem.held, expected).total < attention_error(problem.held, begin.weight).total
    torch.testing.assert_close(found.weight, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("start", ["magnitude", "sparsegpt", "admm"])
@pytest.mark.parametrize("rate", [0.02, 5.0])
def test_held_out_it_never_ends_worse_than_it_began(start, rate):
    for seed in range(3):
        problem = make_attention(seed)
        begin = registry.load(start)(problem.linear, Budget(0.6))
        found = quick("attention_iht", start=start, rate=rate)(problem, Budget(0.6))
        before, after = (attention_error(problem.held, one.weight).total for one in (begin, found))
        assert after <= before
        assert after < 0.9 * before or rate > 1 or start != "magnitude"


def test_the_mask_moves_only_if_it_may():
    problem = make_attention()
    begin = registry.load("magnitude")(problem.linear, Budget(0.5))
    still, moved = (
        quick("attention_iht", start="magnitude", moves=moves)(problem, Budget(0.5)) for moves in (False, True)
    )
    assert torch.equal(still.keep, begin.keep)
    assert not torch.equal(moved.keep, begin.keep)


def test_the_units_of_the_inputs_do_not_matter():
    problem = make_attention()
    sizes = torch.logspace(-2, 2, problem.dense.shape[1], dtype=torch.float64)
    scaled = replace(
        problem,
        dense=problem.dense / sizes,
        linear=replace(problem.linear, target=problem.dense / sizes, gram=problem.linear.gram * sizes * sizes[:, None]),
        fit=replace(problem.fit, given=[x * sizes for x in problem.fit.given], weight=problem.dense / sizes),
        held=replace(problem.held, given=[x * sizes for x in problem.held.given], weight=problem.dense / sizes),
    )
    found, other = (quick("attention_iht")(one, Budget(0.5)) for one in (problem, scaled))
    torch.testing.assert_close(other.weight * sizes, found.weight, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("attention_gd", {"step": 0.0}, "attention_gd.step: expected more than 0"),
        ("attention_gd", {"momentum": 1.0}, "attention_gd.momentum: expected 0 to 1"),
        ("attention_gd", {"batch": 0}, "attention_gd.batch: expected at least 1"),
        ("attention_gd", {"score": "size"}, "attention_gd.score"),
        ("attention_iht", {"start": "attention_gd"}, "attention_iht.start: expected a layer-wise method"),
        ("attention_iht", {"start": "none"}, "unknown method 'none'"),
        ("attention_iht", {"steps": 0}, "attention_iht.steps: expected at least 1"),
        ("attention_iht", {"rate": 0.0}, "attention_iht.rate: expected more than 0"),
        ("attention_iht", {"penalty": -1.0}, "attention_iht.penalty: expected at least 0"),
        ("attention_iht", {"pace": 1}, "attention_iht: unknown setting 'pace'"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, wrong, message):
    with pytest.raises(ParameterError, match=message):
        registry.load(name, wrong)
