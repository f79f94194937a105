"""Damping is raised tenfold, twice at most, and the result tells what was used."""

from __future__ import annotations

import pytest
import torch

from stages.errors import NotPositiveDefiniteError
from stages.linalg.damping import factor_with_damping


def factor_from(threshold, tried):
    """A factorisation that succeeds from a damping on, and notes the dampings it is given."""

    def factorise(damping):
        tried.append(damping)
        return torch.full((1, 1), damping) if damping >= threshold else None

    return factorise


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_the_first_damping_that_suffices_is_used_and_told(attempts):
    tried, expected = [], [0.5, 5.0, 50.0][:attempts]
    found = factor_with_damping(factor_from(expected[-1], tried), 0.5, str)
    assert tried == expected
    assert (found.factor.item(), found.damping, found.attempts) == (expected[-1], expected[-1], attempts)


@pytest.mark.parametrize(("least", "expected"), [(0.0, [0.0, 0.0, 0.0]), (1e-3, [0.0, 1e-3, 1e-2])])
def test_a_damping_of_zero_is_raised_to_the_least_of_a_retry(least, expected):
    tried = []
    with pytest.raises(NotPositiveDefiniteError, match=f"^after {expected[-1]:g}$"):
        factor_with_damping(factor_from(1.0, tried), 0.0, lambda last: f"after {last:g}", least)
    assert tried == pytest.approx(expected)
