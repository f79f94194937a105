"""D-gating of any groups of any module: what it computes, penalises, refuses and leaves behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from stages.errors import GatingError
from stages.gating.baselines import GroupLasso
from stages.gating.gate import gate
from stages.gating.groups import Groups, units, whole_parameters
from stages.gating.slices import EvenSlices, LabelledSlices
from tests.helpers.gated import FAMILIES, example, places_of

EVERY_KIND = pytest.mark.parametrize("kind", FAMILIES)
DEPTHS = pytest.mark.parametrize("depth", [2, 3, 5])


def moved(model, families, depth):
    """Gated, with gates and v somewhere else than at the start."""
    gating = gate(model, families, depth)
    with torch.no_grad():
        for parameter in gating.parameter_groups()[-1]["params"]:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return gating


def state(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@EVERY_KIND
@DEPTHS
def test_gating_changes_nothing_at_first_and_collapse_gives_the_same_module_back(kind, depth):
    model, families, x = example(kind)
    before, expected, kind_of = state(model), model(x), type(model)
    parameters = dict(model.named_parameters())
    gating = gate(model, families, depth)
    assert torch.equal(model(x), expected)
    keeps = gating.collapse(tolerance=0.0)
    assert all(bool(keep.all()) for keep in keeps)
    assert type(model) is kind_of
    assert all(type(module).__name__[:12] != "Parametrized" for module in model.modules())
    assert {name: id(value) for name, value in model.named_parameters()} == {n: id(v) for n, v in parameters.items()}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@EVERY_KIND
@DEPTHS
def test_every_weight_is_its_own_times_its_groups_factors(kind, depth):
    model, families, _ = example(kind)
    plain = copy.deepcopy(model)
    gating = moved(model, families, depth)
    values = {}
    for family in gating.families:
        for one, v in zip(family.groups.slices, family.originals, strict=True):
            values.setdefault(one.parameter, v.detach().clone())
    for family, groups in zip(gating.families, families, strict=True):
        for number, masks in enumerate(places_of(plain, groups)):
            for name, mask in masks.items():
                for factor in family.gates.factors[:, number].tolist():
                    values[name][mask] *= factor
    for name, value in values.items():
        path, _, leaf = name.rpartition(".")
        torch.testing.assert_close(getattr(model.get_submodule(path), leaf).detach(), value)


@EVERY_KIND
@DEPTHS
def test_norms_penalty_and_its_equivalent_are_those_of_the_plain_weights(kind, depth):
    model, families, x = example(kind)
    gating = moved(model, families, depth)
    expected = model(x)
    penalty, value, norms = gating.penalty(0.7), gating.equivalent(0.7), gating.norms()
    factors = [family.gates.factors.detach().clone() for family in gating.families]
    gating.collapse(tolerance=0.0)
    torch.testing.assert_close(model(x), expected)
    weights, total, equivalent = state(model), 0.0, 0.0
    for groups, gates, found in zip(families, factors, norms, strict=True):
        for number, masks in enumerate(places_of(model, groups)):
            norm = sum(weights[name][mask].square().sum() for name, mask in masks.items()).sqrt()
            torch.testing.assert_close(found[number], norm)
            equivalent += float(norm) ** (2 / depth)
            total += float(norm / gates[:, number].prod()) ** 2 + float(gates[:, number].square().sum())
    assert float(penalty) == pytest.approx(0.7 / depth * total)
    assert float(value) == pytest.approx(0.7 * equivalent)
    assert float(value) < float(penalty)


@EVERY_KIND
@DEPTHS
def test_rebalanced_factors_leave_the_weights_and_have_the_least_penalty(kind, depth):
    model, families, x = example(kind)
    gating = moved(model, families, depth)
    expected, before = model(x), float(gating.penalty(0.7))
    assert max(float(one.max()) for one in gating.imbalance()) > 0.1
    gating.rebalance()
    torch.testing.assert_close(model(x), expected)
    assert max(float(one.max()) for one in gating.imbalance()) < 1e-12
    torch.testing.assert_close(gating.penalty(0.7).double(), gating.equivalent(0.7))
    assert float(gating.penalty(0.7)) < before


@EVERY_KIND
def test_gradients_are_those_of_the_definition(kind):
    model, families, x = example(kind)
    gating = moved(model, families, 3)
    parameters = gating.parameter_groups()[-1]["params"]

    def loss(*_):
        return model(x).square().mean() + gating.penalty(0.3)

    assert torch.autograd.gradcheck(loss, parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_collapse_makes_exact_zeros_of_small_groups_and_only_of_them(dtype):
    model, families, x = example("heads and channels", dtype)
    gating = moved(model, families, 3)
    with torch.no_grad():
        heads, channels = (family.gates.factors for family in gating.families)
        heads[0, 1] = -1e-9
        channels[:, [0, 4]] = -1e-5
    expected = model(x)
    keeps = gating.collapse(tolerance=1e-6)
    assert [keep.tolist() for keep in keeps] == [[True, False], [False, True, True, True, False, True]]
    for family, keep in zip(families, keeps, strict=True):
        for kept, masks in zip(keep.tolist(), places_of(model, family), strict=True):
            for name, mask in masks.items():
                values = dict(model.named_parameters())[name][mask]
                assert bool((values != 0).any()) == kept
                assert not bool((torch.signbit(values) & (values == 0)).any())
    torch.testing.assert_close(model(x), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)


def test_a_group_is_gone_relative_to_its_family_or_below_the_floor():
    for tolerance, floor, kept in (
        (1e-3, 0.0, [True, True, True]),
        (0.1, 0.0, [False, True, True]),
        (0.0, 0.5, [False, False, True]),
    ):
        model = nn.Linear(1, 3, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[0.05], [0.5], [1.0]]))
        (keep,) = gate(model, [Groups(3, (EvenSlices("weight"),))]).collapse(tolerance, floor)
        assert keep.tolist() == kept


def test_a_group_at_exactly_the_tolerance_is_gone():
    model = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.25], [1.0]]))
    (keep,) = gate(model, [Groups(2, (EvenSlices("weight"),))]).collapse(0.25)
    assert keep.tolist() == [False, True]
    assert model.weight[0].tolist() == [0.0]


def test_norms_far_below_what_float32_squares_hold_are_told():
    model = nn.Linear(4, 2)
    gating = gate(model, [Groups(2, (EvenSlices("weight"),))], depth=3)
    with torch.no_grad():
        model.parametrizations.weight.original.fill_(1e-22)
        gating.families[0].gates.factors.fill_(1e-20)
    torch.testing.assert_close(gating.norms()[0], torch.full((2,), 2e-62, dtype=torch.float64), rtol=1e-5, atol=0.0)


def test_one_scalar_a_group_and_factor_is_all_that_is_added():
    model, families, _ = example("heads and channels")
    before = sum(value.numel() for value in model.state_dict().values())
    parameters = sum(value.numel() for value in model.parameters())
    gate(model, families, depth=4)
    added = 3 * sum(family.count for family in families)
    assert sum(value.numel() for value in model.parameters()) == parameters + added
    assert sum(value.numel() for value in model.state_dict().values()) == before + added
    assert not list(model.buffers())


def test_a_gated_module_is_copied_saved_and_loaded_with_its_gates_shared():
    model, families, x = example("heads and channels")
    moved(model, families, 3)
    twin = copy.deepcopy(model)
    other, _, _ = example("heads and channels")
    gate(other, families, 3)
    other.load_state_dict(model.state_dict())
    for one in (twin, other):
        assert torch.equal(one(x), model(x))
    with torch.no_grad():
        twin.q.parametrizations.weight[0].gates.factors.zero_()
    assert float(twin.o.weight.detach().abs().max()) == 0.0
    assert float(model.o.weight.detach().abs().max()) > 0.0
    assert float(twin.float()(x.float()).isfinite().all())


def test_half_precision_weights_have_gates_that_can_take_small_steps():
    model, families, x = example("heads and channels", torch.bfloat16)
    gating = gate(model, families)
    optimizer = torch.optim.SGD(gating.parameter_groups(), lr=1e-4)
    before = gating.families[0].gates.factors.clone()
    for _ in range(3):
        optimizer.zero_grad()
        (model(x).float().square().mean() + gating.penalty(1.0)).backward()
        optimizer.step()
    assert model.q.weight.dtype == torch.bfloat16
    assert bool((gating.families[0].gates.factors < before).all())


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_weight_decay_is_for_what_is_not_gated(make):
    model, families, _ = example("two families in one weight")
    gating = gate(model, families)
    groups = gating.parameter_groups(weight_decay=0.1)
    optimizer = make(groups, lr=0.1)
    gating.check(optimizer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    with pytest.raises(GatingError, match=r"expected weight_decay 0 for what is gated, got 0\.1.*parameter_groups"):
        gating.check(make(model.parameters(), lr=0.1, weight_decay=0.1))


def test_an_optimiser_that_does_not_know_the_gates_is_refused():
    model, families, _ = example("whole linears")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gating = gate(model, families)
    with pytest.raises(GatingError, match=r"does not have it.*after gating"):
        gating.check(optimizer)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    gating.check(optimizer)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("depth", [2, 3])
def test_the_penalty_as_weight_decay_takes_the_same_steps(make, depth):
    results = []
    for in_loss in (True, False):
        model, families, x = example("heads and channels")
        gating = gate(model, families, depth)
        groups = gating.parameter_groups(weight_decay=0.1, strength=0.0 if in_loss else 0.3)
        optimizer = make(groups, lr=0.05)
        gating.check(optimizer, 0.0 if in_loss else 0.3)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            (loss + gating.penalty(0.3) if in_loss else loss).backward()
            optimizer.step()
        results.append(state(model))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value)


def test_the_penalty_as_weight_decay_is_refused_twice_and_where_it_would_be_another():
    model, families, _ = example("heads and channels")
    gating = gate(model, families)
    optimizer = torch.optim.SGD(gating.parameter_groups(strength=0.3), lr=0.1)
    with pytest.raises(GatingError, match=r"expected weight_decay 0 for what is gated, got 0\.3"):
        gating.check(optimizer)
    with pytest.raises(GatingError, match=r"expected weight_decay 0\.2 for what is gated, got 0\.3"):
        gating.check(optimizer, 0.2)
    with pytest.raises(GatingError, match=r"adds weight decay to the gradient, got AdamW.*gating\.penalty"):
        gating.check(torch.optim.AdamW(gating.parameter_groups(strength=0.3)), 0.3)


BAD = {
    "no such parameter": (
        units(2, ["query.weight"]),
        r"query\.weight: no such parameter: the model has q\.weight, .*\.\.\.",
    ),
    "rows do not divide": (units(3, ["q.weight"]), r"q\.weight: dimension 0 of length 8 cannot be cut into 1 x 3"),
    "no such dimension": (Groups(2, (EvenSlices("q.bias", 1),)), r"q\.bias: expected dim from 0 to 0 .*got 1"),
    "labels too large": (
        Groups(2, (LabelledSlices("o.weight", torch.arange(8)),)),
        r"o\.weight: expected labels from -1 .* to 1 for 2 groups, got 0 to 7",
    ),
    "labels of another shape": (
        Groups(2, (LabelledSlices("o.weight", torch.zeros(3, 1, dtype=torch.int64)),)),
        r"o\.weight: expected labels that broadcast to its shape \(8, 8\), got \(3, 1\)",
    ),
    "labels that are larger": (
        Groups(1, (LabelledSlices("q.bias", torch.zeros(8, 8, dtype=torch.int64)),)),
        r"q\.bias: expected labels that broadcast to its shape \(8,\), got \(8, 8\)",
    ),
    "labels that are a mask": (
        Groups(2, (LabelledSlices("o.weight", torch.ones(8, dtype=torch.bool)),)),
        r"o\.weight: expected integer labels, got torch\.bool",
    ),
    "an empty group": (
        Groups(3, (LabelledSlices("q.bias", torch.tensor([0, 0, 0, 0, 2, 2, 2, -1])),)),
        r"group 1 of 3 has no weights in q\.bias",
    ),
    "overlapping groups": (
        Groups(2, (EvenSlices("o.weight"), EvenSlices("o.weight", 1))),
        r"o\.weight: some of its weights are in two groups",
    ),
    "no groups": (Groups(0, (EvenSlices("o.weight"),)), r"o\.weight: expected at least 1 group, got 0"),
    "no slices": (Groups(2, ()), "family 0 of 2 groups has no slices"),
}


@pytest.mark.parametrize("family", BAD)
def test_groups_that_the_model_does_not_have_are_refused_and_nothing_is_gated(family):
    groups, message = BAD[family]
    for take in (gate, GroupLasso):
        model, good, x = example("heads and channels")
        before = model(x)
        with pytest.raises(GatingError, match=message):
            take(model, [groups] if family == "no slices" else [*good[1:], groups])
        assert not hasattr(model.gate, "parametrizations")
        assert torch.equal(model(x), before)


@pytest.mark.parametrize("depth", [1, 0, 2.5, True, "2"])
def test_a_depth_without_gates_is_refused(depth):
    with pytest.raises(GatingError, match="depth: expected an integer of at least 2"):
        gate(nn.Linear(2, 2), [Groups(2, (EvenSlices("weight"),))], depth)


def test_other_bad_input_is_refused_in_one_line():
    model, families, _ = example("heads and channels")
    with pytest.raises(GatingError, match="at least one family"):
        gate(model, [])
    gating = gate(model, families)
    with pytest.raises(GatingError, match=r"q\.weight: expected a plain parameter, got a parametrized one: collapse"):
        gate(model, families)
    for tolerance, floor in ((-1e-6, 0.0), (1.0, 0.0), (float("nan"), 0.0), (0.0, -1.0), (0.0, float("nan"))):
        with pytest.raises(GatingError, match="expected 0 <= tolerance < 1 and floor >= 0"):
            gating.collapse(tolerance, floor)
    with torch.no_grad():
        gating.families[1].gates.factors[0, 0] = float("nan")
    with pytest.raises(GatingError, match=r"groups of gate\.weight: a norm is not finite, training has diverged"):
        gating.collapse()
    with torch.no_grad():
        gating.families[1].gates.factors[0, 0] = 1.0
    gating.collapse()
    with pytest.raises(GatingError, match="its gates are gone already"):
        gating.collapse()


def test_tied_and_quantised_weights_are_refused():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(GatingError, match=r"1\.weight is the same tensor as 0\.weight.*untie"):
        gate(model, [whole_parameters(["1.weight"])])
    model[1].weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(GatingError, match=r"1\.weight: expected floating-point weights, got torch\.int8"):
        gate(model, [whole_parameters(["1.weight"])])


def test_embeddings_and_multi_head_attention_are_gated_like_linears():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(11, 12), nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x):
            x = self.embedding(x)
            return self.attention(x, x, x, need_weights=False)[0]

    torch.manual_seed(0)
    model, x = Model(), torch.randint(11, (2, 5))
    stacked = [EvenSlices(f"attention.in_proj_{kind}", repeats=3) for kind in ("weight", "bias")]
    heads = Groups(3, (*stacked, EvenSlices("attention.out_proj.weight", 1)))
    gating = gate(model, [heads, Groups(11, (EvenSlices("embedding.weight"),))])
    with torch.no_grad():
        gating.families[0].gates.factors[0, 1] = 0.0
        gating.families[1].gates.factors[0, x[0, 0]] = 0.0
    for training in (True, False):
        expected = model.train(training)(x)
    gating.collapse()
    torch.testing.assert_close(model(x), expected)
    assert not model.attention.in_proj_weight.view(3, 3, 4, 12)[:, 1].any()
    assert not model.attention.out_proj.weight.view(12, 3, 4)[:, 1].any()
    assert not model.embedding.weight[x[0, 0]].any()


def test_a_dimension_of_one_is_one_group_and_one_of_none_is_refused():
    gating = gate(nn.Linear(3, 1), [Groups(1, (EvenSlices("weight"),))])
    assert [keep.tolist() for keep in gating.collapse()] == [[True]]
    empty = nn.Module()
    empty.weight = nn.Parameter(torch.zeros(0, 3))
    with pytest.raises(GatingError, match="dimension 0 of length 0 cannot be cut"):
        gate(empty, [Groups(1, (EvenSlices("weight"),))])
