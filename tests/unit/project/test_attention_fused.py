"""One mask for fused query and key weights: Algorithm 1 as listed, its gradient, its step, its counts."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import replace

import pytest
import torch

from stages.errors import NotFiniteError, ParameterError
from stages.linalg import attention as matrix
from stages.linalg.attention import causal_mask
from tests.helpers.committed import ROOT
from tests.helpers.largest import Largest
from tests.reference import attention_fused as reference
from tests.reference.attention_matrix import plainly

SPEC = importlib.util.spec_from_file_location("fused", ROOT / "experiments/attention_matrix/fused.py")
sys.modules["fused"] = fused = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fused)
from fused import FusedProblem, MaskDescent, curvature, keep_share, loss_and_gradient, loss_of  # noqa: E402

KINDS = ("causal", "window", "of each input", "none")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def make_fused(kind="causal", seed=0, shape=(3, 10, 6), dtype=torch.float64, scaling=0.4):
    generator = torch.Generator().manual_seed(seed)
    k, n, d = shape
    weight = torch.randn(d, d, generator=generator, dtype=torch.float64).to(dtype)
    inputs = torch.randn(k, n, d, generator=generator, dtype=torch.float64).to(dtype)
    mask = None if kind == "none" else causal_mask(n, inputs)
    if kind == "window":
        mask = mask.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-4), torch.finfo(dtype).min)
    if kind == "of each input":
        hidden = torch.rand(1, k, n, n, generator=generator).tril(-1) > 0.5
        mask = mask.masked_fill(hidden, torch.finfo(dtype).min).contiguous()
    return FusedProblem(weight, inputs, mask, scaling)


def some_scores(problem, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(problem.weight.shape, generator=generator, dtype=torch.float64).to(problem.weight)


def whole_loss(problem, scores, penalty):
    """L(M) from whole attention matrices, differentiable twice."""
    dense, ours = (plainly(problem.heads(weight)) for weight in (problem.weight, scores * problem.weight))
    k, n, _ = problem.inputs.shape
    return (ours - dense).square().sum() / (2 * k * n) + penalty / 2 * scores.square().sum()


def rises(losses):
    return max(later - earlier for earlier, later in itertools.pairwise(losses))


@EVERY_KIND
@pytest.mark.parametrize("held", [1, 70, 1 << 18])
def test_loss_and_gradient_are_those_of_autograd(monkeypatch, kind, held):
    monkeypatch.setattr(matrix, "HELD", held)
    problem = make_fused(kind)
    scores, dense = some_scores(problem), problem.heads(problem.weight)
    leaf = scores.clone().requires_grad_()
    expected = whole_loss(problem, leaf, 0.01)
    (wanted,) = torch.autograd.grad(expected, leaf)
    loss, gradient = loss_and_gradient(problem, dense, scores, 0.01)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-12)
    assert loss_of(problem, dense, scores, 0.01) == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10)
    assert float((gradient - 0.01 * scores).abs().max()) > 1e-3


def test_at_ones_the_gradient_is_the_penalty_alone():
    problem = make_fused()
    ones = torch.ones_like(problem.weight)
    _, gradient = loss_and_gradient(problem, problem.heads(problem.weight), ones, 0.3)
    torch.testing.assert_close(gradient, 0.3 * ones, rtol=0, atol=1e-14)


@EVERY_KIND
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("sparsity", [0.3, 0.5])
def test_agrees_with_the_listing(kind, momentum, sparsity):
    problem = make_fused(kind)
    solution = MaskDescent(penalty=0.01, step=0.2, steps=40, momentum=momentum)(problem, sparsity)
    shown = torch.zeros(1, 1, 10, 10) if problem.mask is None else problem.mask
    shown = (shown[0] == 0).double().expand(3, 10, 10).numpy()
    inputs, weight = list(problem.inputs.numpy()), problem.weight.numpy()
    keep, scores, losses = reference.prune_mask(
        inputs, weight, shown, sparsity, 0.01, solution.step, 40, momentum, problem.scaling
    )
    assert solution.step == pytest.approx(20)
    torch.testing.assert_close(solution.scores, torch.from_numpy(scores), rtol=1e-8, atol=1e-8)
    assert torch.equal(solution.keep, torch.from_numpy(keep))
    assert solution.losses == pytest.approx(losses, rel=1e-9)
    assert scores.std() > 0.01


@pytest.mark.parametrize("sparsity", [0, 0.1, 0.37, 0.5, 0.99, 1])
@pytest.mark.parametrize("steps", [1, 20])
def test_the_count_kept_is_exact(sparsity, steps):
    solution = MaskDescent(steps=steps)(make_fused(dtype=torch.float32), sparsity)
    assert int(solution.keep.sum()) == 36 - int(36 * sparsity + 0.5)
    assert torch.equal(solution.keep, keep_share(solution.scores, sparsity))
    kept, removed = solution.scores[solution.keep], solution.scores[~solution.keep]
    assert not len(kept) or not len(removed) or float(kept.min()) >= float(removed.max())


@pytest.mark.parametrize("held", [1, 70, 200])
def test_pieces_change_nothing_but_rounding(monkeypatch, held):
    problem, method = make_fused(), MaskDescent(penalty=0.01, steps=15)
    whole = method(problem, 0.5)
    monkeypatch.setattr(matrix, "HELD", held)
    pieces = method(problem, 0.5)
    assert torch.equal(pieces.keep, whole.keep)
    torch.testing.assert_close(pieces.scores, whole.scores, rtol=1e-9, atol=1e-9)
    assert pieces.losses == pytest.approx(whole.losses, rel=1e-10)


@EVERY_KIND
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("penalty", [1e-4, 0.04, 1.0])
def test_with_the_safe_step_and_no_momentum_the_loss_never_rises(kind, seed, penalty):
    problem = make_fused(kind, seed, scaling=1.0)
    losses = MaskDescent(penalty, "auto", 30, 0.0)(problem, 0.5).losses
    assert len(losses) == 31
    assert rises(losses) <= 0
    assert losses[-1] < losses[0]


def test_a_step_well_above_the_safe_one_lets_the_loss_rise():
    problem = make_fused(scaling=1.0)
    assert rises(MaskDescent(0.001, 1.9, 30, 0.0)(problem, 0.5).losses) > 1e-3


@pytest.mark.parametrize("steps", [1, 7])
def test_losses_are_those_of_every_mask_on_the_way(steps):
    problem = make_fused()
    solution = MaskDescent(penalty=0.02, steps=steps)(problem, 0.5)
    ones = torch.ones_like(problem.weight)
    assert len(solution.losses) == steps + 1
    assert solution.losses[0] == pytest.approx(float(whole_loss(problem, ones, 0.02)))
    assert solution.losses[-1] == pytest.approx(float(whole_loss(problem, solution.scores, 0.02)))


@EVERY_KIND
@pytest.mark.parametrize("seed", range(4))
def test_no_hessian_bends_more_than_the_curvature(kind, seed):
    problem = make_fused(kind, seed, shape=(2, 5, 3), scaling=1.0)
    bound = curvature(problem, 0.1)
    for size in (0.0, 0.3, 1.0, 3.0):
        scores = size * some_scores(problem, seed)
        hessian = torch.autograd.functional.hessian(lambda m: whole_loss(problem, m, 0.1), scores).view(9, 9)
        assert float(torch.linalg.eigvalsh(hessian)[-1]) <= bound


@pytest.mark.parametrize("width", [2, 3, 6])
def test_a_row_bends_at_most_by_a_half_and_by_almost_a_third(width):
    generator = torch.Generator().manual_seed(width)
    logits, other = 2 * torch.randn(2, 1000, width, generator=generator, dtype=torch.float64)
    targets = torch.cat([torch.eye(width, dtype=torch.float64).repeat(500, 1)[:500], torch.softmax(3 * other[500:], 1)])

    def loss(z, f):
        return (torch.softmax(z, 0) - f).square().sum() / 2

    bends = torch.linalg.eigvalsh(torch.func.vmap(torch.func.hessian(loss))(logits, targets))
    assert 0.25 < float(bends.max()) <= 0.5


def test_curvature_is_the_stated_bound():
    problem = make_fused()
    fourth = sum(float(torch.linalg.eigvalsh(one.T @ one)[-1]) ** 2 for one in problem.inputs)
    expected = 0.2 + (0.4 * float(problem.weight.abs().max())) ** 2 * fourth / (2 * 3 * 10)
    assert curvature(problem, 0.2) == pytest.approx(expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_inputs_are_left_as_they_are_and_dtype_is_kept(momentum):
    problem = make_fused(dtype=torch.float32)
    before = [one.clone() for one in (problem.weight, problem.inputs, problem.mask)]
    solution = MaskDescent(momentum=momentum, steps=5)(problem, 0.5)
    assert all(map(torch.equal, (problem.weight, problem.inputs, problem.mask), before))
    assert solution.scores.dtype == torch.float32
    assert solution.keep.dtype == torch.bool


def test_float32_finds_what_float64_finds():
    method = MaskDescent(penalty=0.01, steps=40)
    exact, rounded = method(make_fused(), 0.5), method(make_fused(dtype=torch.float32), 0.5)
    torch.testing.assert_close(rounded.scores.double(), exact.scores, rtol=1e-3, atol=1e-4)
    assert int((rounded.keep != exact.keep).sum()) <= 2


def test_works_where_gradients_are_off():
    problem = make_fused()
    expected = MaskDescent(steps=3)(problem, 0.5)
    with torch.no_grad():
        found = MaskDescent(steps=3)(problem, 0.5)
    assert torch.equal(found.scores, expected.scores)


def test_no_matrix_of_all_inputs_and_tokens_is_made(monkeypatch):
    problem = make_fused("none", shape=(4, 96, 3))
    monkeypatch.setattr(matrix, "HELD", 1000)
    with Largest() as seen:
        MaskDescent(steps=2)(problem, 0.5)
    assert seen.entries <= max(problem.inputs.numel(), 1000) < 96 * 96


def test_weights_that_only_their_order_decides_between_are_counted():
    equal = MaskDescent(steps=1)(FusedProblem(torch.zeros(6, 6), make_fused(dtype=torch.float32).inputs), 0.25)
    assert (equal.tied, int(equal.keep.sum())) == (9, 27)
    assert MaskDescent(penalty=0.01)(make_fused(), 0.25).tied == 0
    assert MaskDescent(steps=1)(make_fused(), 1).tied == 0


def test_relative_error_is_that_of_whole_matrices():
    problem = make_fused()
    pruned = MaskDescent(penalty=0.01)(problem, 0.5).keep * problem.weight
    ours, dense = plainly(problem.heads(pruned)), plainly(problem.heads(problem.weight))
    expected = float((ours - dense).square().sum() / dense.square().sum())
    assert problem.relative_error(pruned) == pytest.approx(expected)
    assert problem.relative_error(problem.weight) == 0


@pytest.mark.parametrize(
    "setting",
    [
        {"penalty": 0},
        {"penalty": -1.0},
        {"penalty": float("nan")},
        {"step": 0},
        {"step": 3.8},
        {"step": "safe"},
        {"step": float("nan")},
        {"steps": 0},
        {"momentum": 1.0},
        {"momentum": -0.1},
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(setting):
    with pytest.raises(ParameterError, match=rf"^{next(iter(setting))}: expected [^\n]*, got [^\n]*$"):
        MaskDescent(**setting)


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, float("nan")])
def test_a_sparsity_that_is_no_share_is_refused(sparsity):
    with pytest.raises(ParameterError, match="sparsity: expected 0 to 1"):
        MaskDescent()(make_fused(), sparsity)


@pytest.mark.parametrize("name", ["weight", "inputs"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [0.1, "auto"])
def test_numbers_that_are_not_finite_are_refused(name, value, step):
    problem = make_fused()
    broken = getattr(problem, name).clone()
    broken.view(-1)[3] = value
    with pytest.raises(NotFiniteError, match="expected finite weights, inputs"):
        MaskDescent(step=step)(replace(problem, **{name: broken}), 0.5)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"expected inputs \(k, n, d\) and a weight \(d, d\), got"):
        FusedProblem(torch.zeros(4, 5), torch.zeros(2, 3, 4))
