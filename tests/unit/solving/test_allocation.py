"""Non-uniform sparsity: the total is exact, and who loses less is who the rule says."""

from __future__ import annotations

import pytest
import torch

from stages.artifacts.linears import LINEARS
from stages.linalg.allocation import by_error, by_outliers, error_curve, exact_counts, outlier_ratio
from stages.linalg.masks import removed_count


@pytest.mark.parametrize("sparsity", [0.0, 0.001, 0.5, 0.7777, 1.0])
def test_counts_add_up_to_the_exact_total(sparsity):
    weights = [7, 1000, 333, 12345]
    kept = exact_counts([0.0, 1.0, 0.5, 0.3], weights, sparsity, 1.0)
    assert sum(kept) == sum(weights) - removed_count(sum(weights), sparsity)
    assert all(0 <= one <= count for one, count in zip(kept, weights, strict=True))


def test_blocks_with_more_outliers_lose_less_within_the_spread():
    found = by_outliers([0.01, 0.05, 0.03], [100, 100, 200], 0.6, 0.08)
    assert found[0] > found[2] > found[1]
    assert found[0] - found[1] == pytest.approx(0.16)
    assert (found[0] + found[1] + 2 * found[2]) / 4 == pytest.approx(0.6)
    assert by_outliers([0.02, 0.02], [1, 9], 0.6, 0.08) == [0.6, 0.6]


@pytest.mark.parametrize("sparsity", [0.02, 0.3, 0.6, 0.99])
@pytest.mark.parametrize("ratios", [[0.9] + 29 * [0.01], [0.0] + 29 * [0.5], [0.1 * one for one in range(30)]])
def test_one_block_unlike_the_others_stays_within_the_spread(ratios, sparsity):
    """OWL's own centring would take a single block of outliers nearly twice the spread from the mean."""
    weights = [100 + 7 * one for one in range(30)]
    found = by_outliers(ratios, weights, sparsity, 0.08)
    assert all(abs(one - sparsity) <= 0.08 + 1e-12 and 0 <= one <= 1 for one in found)
    up, down = (max(found) - sparsity) / min(0.08, 1 - sparsity), (sparsity - min(found)) / min(0.08, sparsity)
    assert 0.8 < max(up, down) < 1 + 1e-9
    mean = sum(one * weight for one, weight in zip(found, weights, strict=True)) / sum(weights)
    assert mean == pytest.approx(sparsity, abs=1e-12)
    assert [found[0] < found[1], found[0] > found[1]] == [ratios[0] > ratios[1], ratios[0] < ratios[1]]


@pytest.mark.parametrize("sparsities", [[0.9, 0.9, 0.9], [0.42, 0.42, 0.42], [0.58, 0.58, 0.58]])
def test_counts_stay_within_the_spread_to_the_next_whole_number(sparsities):
    weights = [7, 1000, 333]
    kept = exact_counts(sparsities, weights, 0.5, 0.08)
    assert sum(kept) == sum(weights) - removed_count(sum(weights), 0.5)
    assert all(abs(count - one - 0.5 * count) <= 0.08 * count + 1 for one, count in zip(kept, weights, strict=True))
    assert exact_counts([], [], 0.5, 0.08) == []


def test_outliers_are_scores_far_above_the_mean():
    scores = [torch.ones(10), torch.cat([torch.ones(9), torch.tensor([100.0])])]
    assert outlier_ratio(scores, 5.0) == 1 / 20


def test_linears_have_the_same_error_where_the_spread_allows_it():
    generator = torch.Generator().manual_seed(0)
    gram = torch.eye(16, dtype=torch.float64)
    even = torch.ones(64, 16, dtype=torch.float64) + 0.1 * torch.rand(64, 16, generator=generator, dtype=torch.float64)
    uneven = torch.randn(64, 16, generator=generator, dtype=torch.float64) ** 3
    curves = [error_curve(even, gram), error_curve(uneven, gram)]
    found = by_error(curves, [1024, 1024], 0.5, 0.5)
    errors = [float(curve[int(one * 1024)]) for curve, one in zip(curves, found, strict=True)]
    assert found[1] > found[0] + 0.2
    assert sum(found) / 2 == pytest.approx(0.5, abs=1e-3)
    assert errors[0] == pytest.approx(errors[1], abs=5e-3)
    limited = by_error(curves, [1024, 1024], 0.5, 0.1)
    assert limited == pytest.approx([0.4, 0.6])


def test_the_curve_is_the_error_of_removing_the_least_scores_from_a_diagonal_problem():
    dense = torch.tensor([[3.0, 1.0], [2.0, 4.0]], dtype=torch.float64)
    curve = error_curve(dense, torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    torch.testing.assert_close(curve, torch.tensor([0.0, 2.0, 6.0, 15.0, 47.0], dtype=torch.float64) / 47)


@pytest.mark.parametrize("allocation", ["owl", "error"])
@pytest.mark.parametrize("method", ["magnitude", "sparsegpt"])
def test_the_pipeline_gives_each_linear_its_own_count(allocation, method, workspace):
    w = workspace(solve={"method": method, "allocation": allocation, "rules": [{"blocks": [2], "sparsity": 0.1}]})
    w.run("extract", "statistics", "solve", "assemble")
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    shared = [row for row in rows if row["block"] < 2]
    total = sum(row["weights"] for row in shared)
    assert sum(row["kept"] for row in shared) == total - removed_count(total, 0.5)
    assert len({round(row["sparsity"], 3) for row in shared}) > 1
    assert all(abs(row["sparsity"] - 0.5) < 0.081 for row in shared)
    assert {round(row["sparsity"], 2) for row in rows if row["block"] == 2} == {0.1}


@pytest.mark.parametrize("allocation", ["owl", "error"])
def test_a_rule_that_asks_for_the_common_sparsity_gets_it(allocation, workspace):
    w = workspace(solve={"allocation": allocation, "rules": [{"blocks": [1], "sparsity": 0.5}]})
    w.run("extract", "statistics", "solve")
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    assert {row["sparsity"] for row in rows if row["block"] == 1} == {0.5}
    assert len({row["sparsity"] for row in rows if row["block"] != 1}) > 1


@pytest.mark.parametrize("allocation", ["owl", "error"])
def test_nothing_left_to_allocate_is_told(allocation, workspace):
    rules = [{"roles": "attention", "sparsity": 0.5}, {"roles": "mlp", "pattern": "2:4"}]
    w = workspace(solve={"allocation": allocation, "rules": rules})
    w.run("extract", "statistics")
    code, line = w.fail("solve")
    assert code == 2
    assert f"solve.allocation: {allocation} has nothing to share out: every linear has a sparsity" in line


def test_rows_that_do_not_compete_are_refused(workspace):
    w = workspace(solve={"method": "wanda", "allocation": "owl"})
    w.run("extract", "statistics")
    code, line = w.fail("solve")
    assert code == 2
    assert "solve.allocation: owl needs scope linear, got row" in line


@pytest.mark.parametrize("sparsity", [0, 1])
def test_outliers_leave_nothing_to_shift_where_all_or_no_weights_go(sparsity):
    assert by_outliers([0.01, 0.05, 0.03], [100, 100, 200], sparsity, 0.08) == [sparsity] * 3
