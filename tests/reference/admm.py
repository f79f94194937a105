"""ADMM, one linear: W, Z and U kept apart, a linear system solved in every step, every row refitted alone."""

import numpy as np

from tests.reference.magnitude import keep_of_scores


def unit_coordinates(dense, gram):
    """Target, Gram matrix with ones on its diagonal, and the scale between them, float64."""
    diagonal = np.diag(gram)
    scale = np.sqrt(np.maximum(diagonal, 1e-12 * diagonal.mean()))
    unit = gram / np.outer(scale, scale)
    np.fill_diagonal(unit, 1.0)
    return dense * scale, unit, scale


def step(target, hessian, rho, z, u, relaxation=1.0):
    """W + U of the next step, with W over-relaxed."""
    eye = np.eye(len(hessian))
    w = np.linalg.solve(hessian + rho * eye, (target @ hessian + rho * (z - u)).T).T
    return relaxation * w + (1 - relaxation) * z + u


def refit(target, hessian, keep, start, steps):
    """Every row by conjugate gradients on its kept weights, from the best point between mask and start."""
    weight = np.zeros_like(target)
    for i, kept in enumerate(keep):
        places = np.flatnonzero(kept)
        system, wanted = hessian[np.ix_(places, places)], hessian[places] @ target[i]
        w = target[i, places]
        towards = start[i, places] - w
        if towards @ system @ towards > 0:
            w = w + towards * (towards @ (wanted - system @ w)) / (towards @ system @ towards)
        weight[i, places] = _conjugate(system, wanted, w, steps)
    return weight


def _conjugate(system, wanted, w, steps):
    residual = wanted - system @ w
    direction = residual
    for _ in range(steps):
        curvature = direction @ system @ direction
        if curvature <= 0 or residual @ residual <= 0:
            break
        length = residual @ residual / curvature
        w = w + length * direction
        following = residual - length * (system @ direction)
        direction = following + direction * (following @ following) / (residual @ residual)
        residual = following
    return w


def solve(
    dense,
    gram,
    scope="linear",
    sparsity=0.5,
    groups=None,
    iterations=10,
    penalty=0.3,
    penalty_end=1.0,
    penalties=5,
    relaxation=1.5,
    ridge=0.1,
    refine_steps=6,
):
    """Weight and mask, float64, for selections after all steps and without a gradual sparsity."""
    target, unit, scale = unit_coordinates(dense.astype(np.float64), gram)
    hessian = unit + ridge * np.eye(len(unit))
    keep = keep_of_scores(np.abs(target), scope, sparsity, groups)
    z, u = keep * target, ~keep * target
    last = None
    for rho in np.repeat(np.geomspace(penalty, penalty_end, penalties), iterations // penalties):
        u = u if last is None else u * last / rho
        total = step(target, hessian, rho, z, u, relaxation)
        keep = keep_of_scores(np.abs(total), scope, sparsity, groups)
        z, u, last = keep * total, ~keep * total, rho
    return refit(target, hessian, keep, z, refine_steps) / scale, keep
