"""ALPS, one linear: the steps of the ADMM reference, with the penalty that the changes of the mask ask for."""

import numpy as np

from tests.reference.admm import refit, step, unit_coordinates
from tests.reference.magnitude import keep_of_scores


def solve(
    dense,
    gram,
    scope="linear",
    sparsity=0.5,
    groups=None,
    iterations=300,
    penalty=0.1,
    tolerance=0.0003,
    ridge=0.1,
    refine_steps=10,
):
    """Weight and mask, float64."""
    target, unit, scale = unit_coordinates(dense.astype(np.float64), gram)
    hessian = unit + ridge * np.eye(len(unit))
    rho = penalty
    keep = keep_of_scores(np.abs(target), scope, sparsity, groups)
    z, u, seen = keep * target, ~keep * target, keep
    for count in range(1, iterations + 1):
        total = step(target, hessian, rho, z, u)
        keep = keep_of_scores(np.abs(total), scope, sparsity, groups)
        z, u = keep * total, ~keep * total
        if count % 3 == 0:
            changed = (keep != seen).sum() / max(1, keep.sum())
            if changed <= tolerance:
                break
            factor = 1.3 if changed >= 0.1 else 1.2 if changed >= 0.005 else 1.1
            u, rho, seen = u / factor, rho * factor, keep
    return refit(target, hessian, keep, z, refine_steps) / scale, keep
