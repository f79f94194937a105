"""Laws that every method of whole units passes, because its file name enrols it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.methods import registry
from tests.helpers.structured_problems import cast, make_units
from tests.reference import numerical

SETTINGS = [
    *((name, {}) for name in registry.names("units")),
    ("newton", {"form": "penalty"}), ("newton", {"form": "box"}),
    ("obs_units", {"compare": "median"}), ("obs_units", {"compare": "energy"}), ("obs_units", {"compare": "none"}),
    ("obs_units", {"rounds": 1}), ("obs_units", {"rounds": 100}),
    ("flap", {"metric": "variance"}), ("flap", {"standardise": False}),
    ("llm_pruner", {"order": "second"}), ("llm_pruner", {"order": "mixed", "importance": "vector"}),
]  # fmt: skip
EVERY_METHOD = pytest.mark.parametrize(
    ("name", "settings"), SETTINGS, ids=["-".join((name, *map(str, given.values()))) for name, given in SETTINGS]
)
WIDTHS = pytest.mark.parametrize("width", [1, 4], ids=["channels", "heads"])


@EVERY_METHOD
@WIDTHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_unit_has_a_finite_score_and_inputs_are_left_as_they_are(name, settings, width, dtype):
    problem, same = (make_units(12, width, dtype=dtype)[0] for _ in range(2))
    scores = registry.load(name, settings)(problem)
    assert (scores.shape, scores.dtype) == ((12,), dtype)
    assert bool(torch.isfinite(scores).all())
    for field in ("dense", "gram", "mean", "columns", "coupled", "fisher"):
        assert torch.equal(getattr(problem, field), getattr(same, field))
    assert all(torch.equal(term, same.salience[key]) for key, term in problem.salience.items())


@EVERY_METHOD
@WIDTHS
def test_the_same_problem_has_the_same_scores(name, settings, width):
    first, second = (registry.load(name, settings)(make_units(12, width, seed=3)[0]) for _ in range(2))
    assert torch.equal(first, second)


@EVERY_METHOD
@WIDTHS
def test_the_order_does_not_depend_on_the_units_of_activations_or_weights(name, settings, width):
    problem, _ = make_units(12, width)
    scorer = registry.load(name, settings)
    order = scorer(problem).argsort(stable=True)
    for size in (1e-4, 1e3):
        activations = replace(problem, gram=size**2 * problem.gram, mean=size * problem.mean)
        assert torch.equal(scorer(activations).argsort(stable=True), order)
        weights = replace(
            problem, dense=size * problem.dense, coupled=size * problem.coupled,
            salience={key: size * term for key, term in problem.salience.items()},
        )  # fmt: skip
        assert torch.equal(scorer(weights).argsort(stable=True), order)


@EVERY_METHOD
@WIDTHS
def test_numbering_units_otherwise_numbers_their_scores_otherwise(name, settings, width):
    problem, _ = make_units(12, width, seed=1)
    anew = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    renumbered = replace(
        problem, columns=problem.columns[anew], coupled=problem.coupled[anew],
        salience={key: term[anew] for key, term in problem.salience.items()},
    )  # fmt: skip
    scorer = registry.load(name, settings)
    torch.testing.assert_close(scorer(renumbered), scorer(problem)[anew], rtol=1e-8, atol=1e-10)


@EVERY_METHOD
@WIDTHS
def test_where_a_units_inputs_stand_does_not_matter(name, settings, width):
    problem, _ = make_units(12, width, seed=1)
    places = torch.randperm(12 * width, generator=torch.Generator().manual_seed(5))  # of old input i in the new order
    moved = replace(
        problem, dense=problem.dense[:, places], gram=problem.gram[places][:, places], mean=problem.mean[places],
        columns=places.argsort()[problem.columns],
    )  # fmt: skip
    scorer = registry.load(name, settings)
    torch.testing.assert_close(scorer(moved), scorer(problem), rtol=1e-8, atol=1e-10)


@EVERY_METHOD
@WIDTHS
@pytest.mark.parametrize("zero", [0, 7])
def test_a_unit_whose_weights_are_all_zero_scores_lowest(name, settings, width, zero):
    scores = registry.load(name, settings)(make_units(12, width, zero=zero)[0])
    if settings == {"metric": "variance"}:  # of the inputs: it knows nothing of weights
        assert torch.equal(scores, registry.load(name, settings)(make_units(12, width)[0]))
        return
    assert scores[zero] == scores.min()
    others = torch.cat((scores[:zero], scores[zero + 1 :]))
    if "rounds" not in settings or settings["rounds"] > 1:
        assert scores[zero] < others.min()


@EVERY_METHOD
def test_a_methods_needs_are_enough_for_it(name, settings):
    problem, _ = make_units(12)
    scorer = registry.load(name, settings)
    bare = {
        field: getattr(problem, field) if field in scorer.needs else None for field in ("coupled", "salience", "fisher")
    }
    assert torch.equal(scorer(replace(problem, **bare)), scorer(problem))
    for field in scorer.needs:
        with pytest.raises(ValueError, match=f"{name}.* needs"):
            scorer(replace(problem, **{**bare, field: None}))


@pytest.mark.parametrize(("name", "scores"), [
    ("magnitude_units", lambda p: [float((p.coupled[i] ** 2).mean()) for i in range(12)]),
    ("wanda_units", lambda p: [
        float(np.mean([(p.gram[j, j] * (p.dense[:, j] ** 2).sum()) ** 0.5 for j in columns]))
        for columns in p.columns.tolist()
    ]),
])  # fmt: skip
@WIDTHS
def test_plain_scores_are_their_formulas(name, scores, width):
    problem, _ = make_units(12, width)
    assert registry.load(name)(problem).tolist() == pytest.approx(scores(problem))


@WIDTHS
@pytest.mark.parametrize("metric", ["fluctuation", "variance"])
@pytest.mark.parametrize("standardise", [True, False])
def test_flap_is_the_variance_of_the_data(width, metric, standardise):
    problem, x = make_units(12, width)
    expected = x.numpy().var(0)
    if metric == "fluctuation":
        expected = expected * np.linalg.norm(problem.dense.numpy(), axis=0) ** 2
    if standardise:
        expected = (expected - expected.mean()) / expected.std(ddof=1)
    wanted = [expected[columns].mean() for columns in problem.columns.tolist()]
    found = registry.load("flap", {"metric": metric, "standardise": standardise})(problem)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-8, atol=1e-10)


def obs(problem, **settings):
    return registry.load("obs_units", {"damping": 0.0, "compare": "none", **settings}).removal(problem)


def plainly(problem, x):
    """The data, weights and units as the reference takes them: its losses are means over tokens."""
    return x.numpy() / len(x) ** 0.5, problem.dense.T.numpy(), problem.columns.tolist()


@pytest.mark.parametrize(("units", "width"), [(9, 1), (5, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_losses_of_the_first_round_are_those_of_refits(units, width, seed):
    problem, x = make_units(units, width, seed=seed)
    order, losses = obs(problem, rounds=1)
    expected = numerical.losses_of_removals(*plainly(problem, x))
    np.testing.assert_allclose(losses.numpy(), np.array(expected)[order.numpy()], rtol=1e-7)
    assert order.tolist() == np.argsort(expected).tolist()


@pytest.mark.parametrize(("units", "width"), [(9, 1), (5, 3)])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("more", [0, 50])
def test_a_round_for_every_unit_is_the_surgeon_one_by_one(units, width, seed, more):
    problem, x = make_units(units, width, seed=seed)
    order, losses = obs(problem, rounds=units + more)
    expected, costs = numerical.removed_one_by_one(*plainly(problem, x))
    assert order.tolist() == expected
    np.testing.assert_allclose(losses.numpy()[:-1], costs, rtol=1e-7)


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_rounds_take_equal_shares_with_the_losses_of_what_is_left(rounds):
    problem, x = make_units(11, 2)
    order, losses = obs(problem, rounds=rounds)
    plain = plainly(problem, x)
    edges = [11 - 11 * (rounds - number) // rounds for number in range(rounds + 1)]
    assert sorted(order.tolist()) == list(range(11))
    for start, end in itertools.pairwise(edges):
        gone = [column for unit in order[:start].tolist() for column in plain[2][unit]]
        left = order[start:].tolist()
        each = numerical.losses_of_removals(*plain[:2], [plain[2][unit] for unit in left], gone)
        if end < 11 or start == 0:
            np.testing.assert_allclose(losses[start:end].numpy(), np.sort(each)[: end - start], rtol=1e-6)


def test_of_two_units_that_stand_in_for_each_other_only_one_is_cheap():
    problem, x = make_units(8, 1)
    twin = x.clone()
    twin[:, problem.columns[1]] = x[:, problem.columns[0]] + 1e-3 * x[:, problem.columns[2]]
    gram = twin.T @ twin / len(twin)
    once, each = (registry.load("obs_units", {"rounds": rounds, "compare": "none"}) for rounds in (1, 8))
    twins = replace(problem, gram=gram)
    assert set(once(twins).argsort()[:2].tolist()) == {0, 1}
    assert len(set(each(twins).argsort()[:2].tolist()) & {0, 1}) == 1


@WIDTHS
def test_losses_compared_by_an_identity_fisher_are_plain_ones(width):
    problem, _ = make_units(12, width)
    problem = replace(problem, fisher=torch.eye(len(problem.dense), dtype=torch.float64))
    by_loss, plain = (registry.load("obs_units", {"compare": compare})(problem) for compare in ("loss", "none"))
    torch.testing.assert_close(by_loss, plain, rtol=1e-9, atol=0)


@WIDTHS
def test_losses_compared_by_the_fisher_are_what_the_loss_feels_of_a_refit(width):
    """tr R ΔW G ΔWᵀ Rᵀ with RᵀR = Γ: removals of the weights R W, refitted."""
    problem, x = make_units(6, width)
    root = torch.linalg.cholesky(problem.fisher).T
    order, losses = obs(problem, compare="loss", rounds=1)
    felt = replace(problem, dense=root @ problem.dense)
    expected = numerical.losses_of_removals(*plainly(felt, x))
    np.testing.assert_allclose(losses.numpy(), np.array(expected)[order.numpy()], rtol=1e-7)


def test_scores_never_fall_in_the_order_of_removal():
    problem, _ = make_units(30, seed=2)
    scorer = registry.load("obs_units", {"compare": "none", "rounds": 10})
    order, losses = scorer.removal(problem)
    scores = scorer(problem)[order]
    assert bool((scores.diff() >= 0).all())
    torch.testing.assert_close(scores * problem.parameters, losses.cummax(0).values)


@pytest.mark.parametrize(("compare", "size"), [("median", 1e3), ("energy", 1e3)])
def test_relative_losses_do_not_depend_on_the_size_of_a_block(compare, size):
    problem, _ = make_units(12)
    scorer = registry.load("obs_units", {"compare": compare})
    torch.testing.assert_close(scorer(replace(problem, dense=size * problem.dense)), scorer(problem))


@pytest.mark.parametrize("compare", ["loss", "median", "energy", "none"])
def test_blocks_whose_units_all_cost_nothing_have_finite_scores(compare):
    problem, _ = make_units(12)
    dense = problem.dense.clone()
    dense[:, problem.columns[:9].flatten()] = 0
    for weight in (dense, torch.zeros_like(dense)):
        scores = registry.load("obs_units", {"compare": compare})(replace(problem, dense=weight))
        assert bool(torch.isfinite(scores).all())
        assert bool((scores[:9] == 0).all())


@pytest.mark.parametrize("width", [1, 4])
def test_gram_matrices_without_an_inverse_are_told_with_advice(width):
    problem, _ = make_units(12, width, tokens=5)
    with pytest.raises(NotPositiveDefiniteError, match=r"more calibration tokens than .* methods\.obs_units\.damping"):
        obs(problem)
    assert bool(torch.isfinite(registry.load("obs_units")(cast(problem, torch.float32))).all())


def test_inverses_that_are_lost_on_the_way_are_told_with_advice():
    """Two directions and ever less else: first parts of the inverse have no factor, then the matrix itself."""
    problem, x = make_units(12)
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    mixed, told = x[:, :2] @ torch.randn(2, 12, generator=generator, dtype=torch.float64), []
    for digits in (6.0, 7.0, 7.25, 7.5, 8.0):
        alike = mixed + 10.0**-digits * rest
        try:
            losses = obs(replace(problem, gram=alike.T @ alike / len(alike)), rounds=24)[1]
        except NotPositiveDefiniteError as error:
            told.append("raise methods.obs_units.damping" in str(error))
        else:
            assert bool(torch.isfinite(losses).all())
    assert 0 < len(told) < 5
    assert all(told)


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("obs_units", {"rounds": 0}, r"methods\.obs_units\.rounds: expected at least 1, got 0"),
        ("obs_units", {"damping": -1.0}, r"methods\.obs_units\.damping"),
        ("obs_units", {"compare": "all"}, r"methods\.obs_units\.compare"),
        ("newton", {"removed": 1.0}, r"methods\.newton\.removed: expected a fraction"),
        ("newton", {"form": "open"}, r"methods\.newton\.form"),
        ("flap", {"metrics": "x"}, r"methods\.flap: unknown setting 'metrics': did you mean metric\? Expected one"),
        ("wanda_units", {"power": 1}, r"methods\.wanda_units: unknown setting 'power': expected one of: none"),
    ],
)
def test_settings_that_are_wrong_are_named(name, settings, told):
    with pytest.raises(ParameterError, match=told):
        registry.load(name, settings)
