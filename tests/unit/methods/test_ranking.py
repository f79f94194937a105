"""Ranking of units: exact budgets, the cheapest first, what is settled or comes in multiples."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from stages.errors import ArchitectureError, ParameterError
from stages.methods.units.ranking import RankedUnits, keep_above_threshold, keep_best, keep_to_budget
from stages.params.pruning import Solve
from stages.solving.units.checks import check_rules
from stages.solving.units.ranking import kept_units
from tests.reference import numerical

SEEDS = pytest.mark.parametrize("seed", range(25))


def places(seed=0, blocks=4, heads=4, channels=24, cost=(96, 12), multiple=1):
    """Heads and channels of some blocks with random scores, heads scored as per parameter."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(blocks):
        found.append(RankedUnits(torch.rand(heads, generator=generator), cost[0]))
        found.append(RankedUnits(torch.rand(channels, generator=generator), cost[1], multiple=multiple))
    return found


def total_of(some):
    return sum(len(place.scores) * place.parameters for place in some)


def removed_of(some, keeps):
    return sum(int((~keep).sum()) * place.parameters for place, keep in zip(some, keeps, strict=True))


@SEEDS
def test_the_budget_is_missed_by_less_than_the_smallest_unit(seed):
    some = places(seed, cost=(random.Random(seed).randrange(20, 300), random.Random(seed).randrange(1, 20)))
    for share in (0.0, 0.013, 0.1, 0.37, 0.5, 0.7):
        wanted = int(share * total_of(some))
        keeps = keep_to_budget(some, wanted)
        channels_left = any(int(keep.sum()) > 1 for keep in keeps[1::2])
        assert 0 <= removed_of(some, keeps) - wanted < some[1 if channels_left else 0].parameters


@SEEDS
def test_what_goes_is_what_the_plain_loop_takes(seed):
    some = places(seed)
    wanted = int((0.05 + 0.03 * (seed % 20)) * total_of(some))
    expected = numerical.ranked([place.scores.tolist() for place in some], [place.parameters for place in some], wanted)
    assert [keep.tolist() for keep in keep_to_budget(some, wanted)] == expected


@SEEDS
def test_in_every_place_the_best_stay(seed):
    some = places(seed)
    for place, keep in zip(some, keep_to_budget(some, total_of(some) // 3), strict=True):
        if not bool(keep.all()):
            assert place.scores[keep].min() >= place.scores[~keep].max()


def test_places_of_equal_cost_are_cut_at_one_threshold():
    some = places(cost=(10, 10))
    keeps = keep_to_budget(some, 500)
    kept = torch.cat([place.scores[keep] for place, keep in zip(some, keeps, strict=True)])
    gone = torch.cat([place.scores[~keep] for place, keep in zip(some, keeps, strict=True)])
    assert len(gone) == 50
    assert kept.min() >= gone.max()


def test_a_unit_too_large_for_what_is_left_is_passed_over():
    some = [RankedUnits(torch.tensor([0.0, 0.1, 9.0]), 100), RankedUnits(torch.tensor([1.0, 2.0, 3.0, 4.0]), 10)]
    assert [keep.tolist() for keep in keep_to_budget(some, 125)] == [[False, True, True], [False, False, False, True]]
    assert removed_of(some, keep_to_budget(some, 125)) == 130


def test_where_nothing_smaller_is_left_the_large_one_goes():
    some = [RankedUnits(torch.tensor([5.0, 6.0]), 100), RankedUnits(torch.tensor([1.0, 2.0]), 10)]
    assert [keep.tolist() for keep in keep_to_budget(some, 30)] == [[False, True], [False, True]]


@SEEDS
@pytest.mark.parametrize("multiple", [4, 7, 16, 24])
def test_widths_stay_multiples(seed, multiple):
    some = places(seed, multiple=multiple)
    for share in (0.1, 0.2, 0.4):
        wanted = int(share * total_of(some))
        keeps = keep_to_budget(some, wanted)
        assert all(int(keep.sum()) % multiple == 0 or bool(keep.all()) for keep in keeps[1::2])
        assert all(int(keep.sum()) >= multiple for keep in keeps[1::2])
        assert 0 <= removed_of(some, keeps) - wanted < multiple * 12 + 96


def test_pieces_of_a_multiple_compete_by_their_mean_and_go_in_order():
    first = RankedUnits(torch.tensor([0.0, 10.0, 20.0, 30.0]), 1, multiple=2)
    second = RankedUnits(torch.tensor([4.0, 4.5, 20.0, 30.0]), 1, multiple=2)
    assert [keep.tolist() for keep in keep_to_budget([first, second], 2)] == [[True] * 4, [False, False, True, True]]


def test_settled_places_keep_what_they_are_told_and_others_make_up_for_it():
    some = places()
    fixed = [RankedUnits(some[0].scores, 96, kept=4), RankedUnits(some[1].scores, 12, kept=3), *some[2:]]
    wanted = total_of(fixed) // 3
    keeps = keep_to_budget(fixed, wanted)
    assert [int(keep.sum()) for keep in keeps[:2]] == [4, 3]
    assert keeps[1].tolist() == keep_best(some[1].scores, 3).tolist()
    assert 0 <= removed_of(fixed, keeps) - wanted < 12


def test_settled_places_that_lose_more_than_the_budget_leave_the_others_whole():
    some = places()
    fixed = [RankedUnits(place.scores, place.parameters, kept=1) for place in some[:4]] + some[4:]
    assert all(bool(keep.all()) for keep in keep_to_budget(fixed, 10)[4:])


def test_every_place_keeps_one_and_more_than_that_cannot_go():
    some = places()
    able = sum((len(place.scores) - 1) * place.parameters for place in some)
    assert [int(keep.sum()) for keep in keep_to_budget(some, able)] == [1] * len(some)
    with pytest.raises(ParameterError, match=r"solve\.sparsity: 0\.8397 of .* at most 0\.8393 can"):
        keep_to_budget(some, able + 1)


def test_what_is_protected_counts_in_the_error():
    some = [RankedUnits(torch.rand(5), 10, kept=5), RankedUnits(torch.rand(5), 10)]
    with pytest.raises(ParameterError, match=r"0\.5000 of .* at most 0\.4000 can, .*protect less"):
        keep_to_budget(some, 50)


def test_equal_scores_go_from_the_last_and_from_the_first_place():
    some = [RankedUnits(torch.zeros(4), 1), RankedUnits(torch.zeros(4), 1)]
    assert [keep.tolist() for keep in keep_to_budget(some, 4)] == [
        [True, False, False, False],
        [True, True, True, False],
    ]
    assert keep_best(torch.tensor([1.0, 2.0, 1.0]), 2).tolist() == [True, True, False]


@SEEDS
@pytest.mark.parametrize("share", [0.0, 0.2, 0.61])
def test_the_literal_rule_is_equation_8(seed, share):
    some = places(seed)
    factors = [8.0, 1.0] * 4
    together = sorted(
        float(score) for place, factor in zip(some, factors, strict=True) for score in place.scores * factor
    )
    threshold = together[int(share * len(together))]
    for place, factor, keep in zip(some, factors, keep_above_threshold(some, share, factors), strict=True):
        expected = place.scores * factor >= threshold
        assert keep.tolist() == (expected if bool(expected.any()) else keep_best(place.scores, 1)).tolist()


def test_the_literal_rule_counts_units_and_spares_heads():
    some = places(heads=8, channels=24)
    keeps = keep_above_threshold(some, 0.25, [100.0, 1.0] * 4)
    assert all(bool(keep.all()) for keep in keeps[::2])
    assert sum(int((~keep).sum()) for keep in keeps) == 32


def test_the_literal_rule_keeps_one_and_leaves_settled_places():
    some = [
        RankedUnits(torch.tensor([1.0, 2.0]), 1),
        RankedUnits(torch.arange(8.0) + 10, 1),
        RankedUnits(torch.rand(4), 1, kept=2),
    ]
    assert [int(keep.sum()) for keep in keep_above_threshold(some, 0.5, [1.0] * 3)] == [1, 5, 2]
    assert [int(keep.sum()) for keep in keep_above_threshold(some, 1.0, [1.0] * 3)] == [1, 1, 2]
    settled = [RankedUnits(torch.rand(4), 1, kept=3)]
    assert int(keep_above_threshold(settled, 0.9, [1.0])[0].sum()) == 3


def units_for(some):
    """What choosing knows of the units of these places."""
    return [
        SimpleNamespace(kind=kind, count=len(place.scores), parameters=place.parameters, columns=torch.zeros(1, 6))
        for place, kind in zip(some, ("heads", "channels") * len(some), strict=False)
    ]


def uniform(some, sparsity, **settings):
    solve = Solve(method="newton", sparsity=sparsity, units={"allocation": "uniform", **settings})
    return kept_units(solve, SimpleNamespace(allocation="global"), units_for(some), some)


@SEEDS
@pytest.mark.parametrize("sparsity", [0.1, 0.25, 0.4, 0.6])
def test_uniform_blocks_all_have_the_same_widths_and_the_budget_is_met(seed, sparsity):
    some = places(seed)
    keeps = uniform(some, sparsity)
    for kind in (0, 1):
        assert len({int(keep.sum()) for keep in keeps[kind::2]}) == 1
    assert int(keeps[0].sum()) == 4 - round(4 * sparsity)
    over = removed_of(some, keeps) - sparsity * total_of(some)
    assert 0 <= over < 4 * 12
    for place, keep in zip(some, keeps, strict=True):
        assert keep.tolist() == keep_best(place.scores, int(keep.sum())).tolist()


def test_uniform_widths_stay_multiples():
    some = places(multiple=8)
    keeps = uniform(some, 0.3, multiple=8)
    assert {int(keep.sum()) for keep in keeps[1::2]} == {8}  # 15.2 and fewer of 24 meet the budget


def test_uniform_leaves_settled_places_and_the_others_make_up_for_them():
    some = places()
    fixed = [RankedUnits(place.scores, place.parameters, kept=len(place.scores)) for place in some[:2]] + some[2:]
    keeps = uniform(fixed, 0.3)
    assert all(bool(keep.all()) for keep in keeps[:2])
    assert 0 <= removed_of(fixed, keeps) - 0.3 * total_of(fixed) < 3 * 12


def test_uniform_takes_no_head_where_rules_take_all_that_is_asked():
    some = places()
    fixed = [
        RankedUnits(place.scores, place.parameters, kept=1) if number in (1, 3) else place
        for number, place in enumerate(some)
    ]
    keeps = uniform(fixed, 0.2)
    assert removed_of(fixed, keeps) == removed_of(fixed, keep_to_budget(fixed, 1))


def test_uniform_takes_more_heads_where_half_of_the_model_is_protected():
    some = places()
    fixed = [RankedUnits(place.scores, place.parameters, kept=len(place.scores)) for place in some[:4]] + some[4:]
    keeps = uniform(fixed, 0.3)
    assert all(bool(keep.all()) for keep in keeps[:4])
    assert removed_of(fixed, keeps) >= 0.3 * total_of(fixed)


def test_uniform_rounds_no_width_where_nothing_goes():
    assert all(bool(keep.all()) for keep in uniform(places(multiple=7), 0.0, multiple=7))


@pytest.mark.parametrize("free", [0, 1])
def test_uniform_with_one_kind_free_meets_the_budget_with_it_or_tells(free):
    some = [
        place if number % 2 == free else RankedUnits(place.scores, place.parameters, kept=len(place.scores))
        for number, place in enumerate(places())
    ]
    keeps = uniform(some, 0.2)
    assert removed_of(some, keeps) >= 0.2 * total_of(some)
    with pytest.raises(ParameterError, match=r"solve\.sparsity: 0\.6 cannot be met"):
        uniform(some, 0.6)


def test_uniform_with_nothing_free_tells_a_budget_that_is_not_met():
    some = [RankedUnits(place.scores, place.parameters, kept=len(place.scores)) for place in places()]
    with pytest.raises(ParameterError, match=r"solve\.sparsity"):
        uniform(some, 0.2)


def test_uniform_refuses_blocks_of_other_widths():
    some = places()[:4] + places(blocks=1, channels=20)
    with pytest.raises(ParameterError, match=r"solve\.units\.allocation: uniform needs blocks of the same widths"):
        uniform(some, 0.2)


def test_uniform_refuses_other_widths_where_only_one_kind_is_free():
    some = places(blocks=1) + places(blocks=1, channels=20)
    fixed = [RankedUnits(some[0].scores, 96, kept=4), some[1], RankedUnits(some[2].scores, 96, kept=4), some[3]]
    with pytest.raises(ParameterError, match=r"solve\.units\.allocation: uniform needs blocks of the same widths"):
        uniform(fixed, 0.2)


def test_the_allocation_of_the_method_is_taken_unless_one_is_asked_for():
    some, solve = places(), Solve(method="newton", sparsity=0.3)
    scorers = {name: SimpleNamespace(allocation=name) for name in ("global", "uniform")}
    found = {
        name: [keep.tolist() for keep in kept_units(solve, one, units_for(some), some)] for name, one in scorers.items()
    }
    assert found["uniform"] == [keep.tolist() for keep in uniform(some, 0.3)]
    assert found["global"] == [keep.tolist() for keep in keep_to_budget(some, -int(-0.3 * total_of(some) // 1))]


def test_what_has_lost_units_before_is_refused():
    settings = Solve(method="newton", sparsity=0.2)
    once = SimpleNamespace(config=SimpleNamespace(model_type="hetero_llama", block_channels=[1, 2, 3]), blocks=3)
    with pytest.raises(ArchitectureError, match=r"hetero_llama has lost heads or channels before.*fetch that one"):
        check_rules(settings, once)
