"""Gram sums, exact masks, packed bits, the global ranking, the inverse factor."""

from __future__ import annotations

import pytest
import torch

from stages.artifacts.packing import pack, unpack
from stages.linalg.factor import inverse_factor
from stages.linalg.global_magnitude import kept_by_global_magnitude
from stages.linalg.gram import PANEL, GramSum
from stages.linalg.masks import keep_groups, keep_largest, keep_largest_plain, removed_before, removed_count
from tests.helpers.problems import make_problem


@pytest.mark.parametrize("width", [5, PANEL, PANEL + 3, 2 * PANEL + 1])
def test_a_gram_sum_in_chunks_is_the_mean_of_outer_products(width):
    x = torch.randn(3, 7, width, dtype=torch.float64)
    total = GramSum.zeros(width, torch.float64, torch.device("cpu"))
    for part in x.split(2):
        total.add(part)
    flat = x.reshape(-1, width)
    torch.testing.assert_close(total.mean_gram(), flat.T @ flat / 21)
    torch.testing.assert_close(total.mean(), flat.mean(0))
    assert total.tokens == 21
    assert torch.equal(total.mean_gram(), total.mean_gram().T)


def test_the_mean_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="no tokens"):
        GramSum.zeros(3, torch.float32, torch.device("cpu")).mean_gram()


@pytest.mark.parametrize("kept", [0, 1, 5, 9, 10])
def test_exactly_so_many_are_kept_even_among_equals(kept):
    for scores in (torch.ones(4, 10), torch.randint(0, 3, (4, 10)).float(), torch.randn(4, 10)):
        keep = keep_largest(scores, kept)
        assert keep.sum(1).tolist() == [kept] * 4
        for row, mask in zip(scores, keep, strict=True):
            if 0 < kept < 10:
                assert row[mask].min() >= row[~mask].max()


def test_among_equals_the_first_are_kept_in_any_memory_order():
    scores = torch.tensor([[1.0, 2.0, 1.0, 1.0]])
    assert keep_largest(scores, 2).tolist() == [[True, True, False, False]]
    assert torch.equal(keep_largest(scores.T.contiguous().T, 2), keep_largest(scores, 2))


def nasty_scores(shape, dtype):
    """Scores that a selection by the bits of floats, or by thresholds, may get wrong."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(shape, generator=generator, dtype=dtype)
    sign = torch.where(torch.rand(shape, generator=generator) < 0.5, -1, 1).to(dtype)
    return {
        "random": normal,
        "negative": -normal.abs(),
        "wide": (15 * normal).exp() * sign,
        "ties": torch.randint(-3, 4, shape, generator=generator).to(dtype) * sign,
        "equal": torch.ones(shape, dtype=dtype),
        "zeros of both signs": 0 * sign,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(70001,), (2, 140001), (50, 576), (4, 1030), (1100, 4), (800, 8), (1000, 5)])
def test_the_kernels_keep_what_the_plain_selection_keeps(shape, dtype):
    length, before = shape[-1], torch.get_num_threads()
    try:
        for kind, scores in nasty_scores(shape, dtype).items():
            for kept in sorted({1, length // 3, length // 2, length - 1}):
                expected = keep_largest_plain(scores, kept)
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    assert torch.equal(keep_largest(scores, kept), expected), (kind, kept, threads)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kept", [0, 1, 2500, 5000])
def test_many_scores_keep_their_exact_count_in_any_memory_order(kept):
    scores = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)).T
    assert keep_largest(scores, kept).sum(1).tolist() == [kept] * 3
    assert torch.equal(keep_largest(scores, kept), keep_largest(scores.contiguous(), kept))


def test_groups_are_neighbours_along_the_row():
    keep = keep_groups(torch.tensor([[4.0, 3.0, 2.0, 1.0, 1.0, 2.0, 3.0, 4.0]]), 2, 4)
    assert keep.tolist() == [[True, True, False, False, False, False, True, True]]


def test_shares_of_a_count_add_up():
    for removed in (0, 1, 17, 100):
        shares = [removed_before(removed, position, 7) for position in range(8)]
        assert shares[0] == 0
        assert shares[-1] == removed
        assert shares == sorted(shares)
    assert [removed_count(10, sparsity) for sparsity in (0, 0.05, 0.5, 0.94, 1)] == [0, 1, 5, 9, 10]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 16)])
def test_packed_masks_unpack_to_themselves(shape):
    keep = torch.rand(shape) > 0.5
    packed = pack(keep)
    assert packed.numel() == -(-keep.numel() // 8)
    assert torch.equal(unpack(packed, shape), keep)


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_global_ranking_is_that_of_all_weights_sorted_together(sparsity, dtype):
    generator = torch.Generator().manual_seed(0)
    weights = [(torch.randn(20, 30, generator=generator) * scale).to(dtype) for scale in (0.1, 1, 3)]
    weights[1][0] = 0
    counts = kept_by_global_magnitude(lambda: weights, sparsity)
    flat = torch.cat([weight.float().abs().flatten() for weight in weights])
    expected = keep_largest(flat, flat.numel() - removed_count(flat.numel(), sparsity)).split(600)
    assert counts == [int(part.sum()) for part in expected]


def test_the_inverse_factor_is_upper_and_gives_the_damped_inverse():
    gram = make_problem("correlated", dtype=torch.float64).gram
    factor = inverse_factor(gram, 0.02)
    damped = gram / gram.diagonal().mean() + 0.02 * torch.eye(48, dtype=torch.float64)
    torch.testing.assert_close(factor.upper.T @ factor.upper, torch.linalg.inv(damped))
    assert torch.equal(factor.upper, factor.upper.triu())
    assert (factor.damping, factor.attempts) == (0.02, 1)
