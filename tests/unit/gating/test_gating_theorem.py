"""Theorem 2.2: gated problems have the minima of group-lasso problems, at balanced factors; and the two baselines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from stages.gating.baselines import GroupLasso
from stages.gating.gate import gate
from stages.gating.groups import Groups
from stages.gating.slices import EvenSlices, LabelledSlices
from tests.helpers.gated import FAMILIES, example, places_of
from tests.reference import group_lasso as reference

SKGLM = {
    0: 0.6302398314508646,
    1: 0.934372022443302,
    2: 2.7088771260171565,
    3: 2.836399385505162,
    4: 4.320988001735265,
    5: 2.1093412911512583,
    6: 1.010442594380939,
    7: 10.83512795278821,
    8: 3.451457997172738,
    9: 7.1635227489670665,
}
"""Least objectives of the reference's problems, by GroupBCD of skglm 0.5, tol=1e-14 (it compiles for half a minute)."""


def regression(x, y, groups):
    """A linear without bias, its columns in groups, and ½ mean squared error; for even groups without labels."""
    model = nn.Linear(x.shape[1], 1, bias=False, dtype=torch.float64)
    labels = torch.empty(x.shape[1], dtype=torch.int64)
    for number, group in enumerate(groups):
        labels[torch.as_tensor(group)] = number
    even = bool((labels.sort().values == labels).all()) and len({len(group) for group in groups}) == 1
    slices = EvenSlices("weight", dim=1) if even else LabelledSlices("weight", labels)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    return model, Groups(len(groups), (slices,)), lambda: (model(inputs).squeeze(1) - targets).square().mean() / 2


def minimise(parameters, objective, rounds=40):
    """By L-BFGS, until it no longer falls."""
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=100,
        history_size=20,
        tolerance_grad=1e-12,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    last = float("inf")
    for _ in range(rounds):
        value = float(optimizer.step(closure).detach())
        if last - value <= 1e-13 * abs(value):
            break
        last = value
    return float(objective().detach())


@pytest.mark.parametrize("seed", range(10))
def test_two_factors_come_to_the_minimum_of_the_group_lasso(seed):
    x, y, groups, strength = reference.problem(seed)
    solution = reference.solve(x, y, groups, strength)
    least = reference.objective(solution, x, y, groups, strength)
    assert least == pytest.approx(SKGLM[seed], rel=1e-9)

    torch.manual_seed(seed)
    model, family, loss = regression(x, y, groups)
    gating = gate(model, [family])
    found = minimise(gating.parameter_groups()[-1]["params"], lambda: loss() + gating.penalty(strength))
    assert found == pytest.approx(least, rel=1e-6)  # the smooth objective
    assert float(gating.imbalance()[0].max()) < 1e-3
    (keep,) = gating.collapse(tolerance=1e-4)
    weight = model.weight.detach().numpy()[0]
    assert reference.objective(weight, x, y, groups, strength) == pytest.approx(least, rel=1e-4)
    assert keep.tolist() == [bool(np.any(solution[group])) for group in groups]
    np.testing.assert_allclose(weight, solution, atol=1e-3 * np.abs(solution).max())


def test_plain_gradient_descent_comes_there_too_and_balances_what_began_unbalanced():
    x, y, groups, strength = reference.problem(4)
    least = SKGLM[4]
    torch.manual_seed(0)
    model, family, loss = regression(x, y, groups)
    gating = gate(model, [family])
    optimizer = torch.optim.SGD(gating.parameter_groups(), lr=0.02, momentum=0.9)
    before = float(gating.imbalance()[0].max())
    for _ in range(1500):
        optimizer.zero_grad()
        (loss() + gating.penalty(strength)).backward()
        optimizer.step()
    assert float((loss() + gating.penalty(strength)).detach()) == pytest.approx(least, rel=1e-4)
    assert before > 0.3
    assert float(gating.imbalance()[0].max()) < 1e-3
    norms = gating.norms()[0]
    assert int((norms < 1e-6 * norms.max()).sum()) == 9


def test_the_exact_minimum_in_balanced_factors_has_no_gradient():
    x, y, groups, strength = reference.problem(6)
    solution = reference.solve(x, y, groups, strength, gap=1e-14)
    model, family, loss = regression(x, y, groups)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(solution))
    gating = gate(model, [family])
    parameters = gating.parameter_groups()[-1]["params"]
    (loss() + gating.penalty(strength)).backward()
    assert max(float(one.grad.abs().max()) for one in parameters) > 1e-2  # same weights, unbalanced
    gating.rebalance()
    for one in parameters:
        one.grad = None
    value = loss() + gating.penalty(strength)
    value.backward()
    assert float(value) == pytest.approx(SKGLM[6], rel=1e-9)
    assert max(float(one.grad.abs().max()) for one in parameters) < 1e-5


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_factors_has_the_minimum_that_brute_force_finds(depth, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 3))
    y = x @ np.array([1.0, -0.7, 0.1]) + 0.2 * rng.normal(size=30)
    groups, strength = [np.array([0, 2]), np.array([1])], 0.15
    best, at = reference.grid_minimum(x, y, groups, strength, depth, reach=1.5)
    assert best < reference.objective(np.zeros(3), x, y, groups, strength, depth)

    found = []
    for start in range(8):  # for D > 2 there are local minima
        torch.manual_seed(start)
        model, family, loss = regression(x, y, groups)
        gating = gate(model, [family], depth)
        value = minimise(
            gating.parameter_groups()[-1]["params"], lambda gating=gating, loss=loss: loss() + gating.penalty(strength)
        )
        balanced = float(gating.imbalance()[0].max())
        gating.collapse(tolerance=1e-3)
        found.append((value, balanced, model.weight.detach().numpy()[0]))
    value, balanced, weight = min(found, key=lambda one: one[0])
    assert value == pytest.approx(best, rel=1e-4)
    assert all(
        one[0] >= best * (1 - 1e-4) for one in found
    )  # none below: the penalty is no smaller than its equivalent
    assert balanced < 1e-3
    np.testing.assert_allclose(weight, at, atol=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_proximal_steps_come_to_the_minimum_with_exact_zeros(seed):
    x, y, groups, strength = reference.problem(seed)
    model, family, loss = regression(x, y, groups)
    lasso = GroupLasso(model, [family])
    rate = len(y) / np.linalg.norm(x, 2) ** 2
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(1200):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        lasso.shrink(rate * strength)
    assert float((loss() + lasso.penalty(strength)).detach()) == pytest.approx(SKGLM[seed], rel=1e-6)
    solution = reference.solve(x, y, groups, strength)
    weight = model.weight.detach()[0]
    assert [bool(weight[group].any()) for group in groups] == [bool(np.any(solution[group])) for group in groups]
    assert not bool((torch.signbit(weight) & (weight == 0)).any())


def test_the_naive_penalty_left_to_sgd_comes_near_the_minimum_and_never_to_zero():
    x, y, groups, strength = reference.problem(4)
    torch.manual_seed(0)
    model, family, loss = regression(x, y, groups)
    lasso = GroupLasso(model, [family])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(1500):
        optimizer.zero_grad()
        (loss() + lasso.penalty(strength)).backward()
        optimizer.step()
    norms = lasso.norms()[0]
    assert 1.001 < float((loss() + lasso.penalty(strength)).detach()) / SKGLM[4] < 1.2
    assert float(norms.min() / norms.max()) > 1e-3


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_baselines_penalty_and_step_are_those_of_the_definition(kind):
    model, families, _ = example(kind)
    lasso, plain = GroupLasso(model, families), example(kind)[0]
    norms = lasso.norms()
    threshold = float(torch.cat(norms).median())
    penalty = lasso.penalty(0.7)
    total = 0.0
    for family, found in zip(families, norms, strict=True):
        for number, masks in enumerate(places_of(plain, family)):
            weights = dict(plain.named_parameters())
            norm = sum(weights[name].detach()[mask].square().sum() for name, mask in masks.items()).sqrt()
            torch.testing.assert_close(found[number], norm)
            total += 0.7 * float(norm)
            with torch.no_grad():
                for name, mask in masks.items():
                    weights[name][mask] *= float((1 - threshold / norm).clamp_min(0))
    assert float(penalty) == pytest.approx(total)
    lasso.shrink(threshold)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, dict(plain.named_parameters())[name])
        assert not bool((torch.signbit(value) & (value == 0)).any())


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_naive_gradient_is_the_direction_of_the_group_and_zero_at_zero(kind):
    model, families, _ = example(kind)
    lasso = GroupLasso(model, families)
    assert torch.autograd.gradcheck(lambda *_: lasso.penalty(0.3), list(model.parameters()), raise_exception=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.zero_grad()
    lasso.penalty(0.3).backward()
    assert all(float(one.grad.abs().max()) == 0.0 for one in model.parameters() if one.grad is not None)
