"""The group lasso min 1/2n ‖y - Xw‖² + λ Σ_h ‖w_h‖, with a proof of how near its minimum is; and its 2/D relatives."""

import numpy as np


def problem(seed):
    """X, y, groups (lists of columns, equal ones for even seeds), λ from a twentieth to half of what leaves nothing."""
    rng = np.random.default_rng(seed)
    samples, size, count = (40, 80)[seed % 2], 3 + seed % 4, 6 + seed
    features = size * count
    mix = np.eye(features) + 0.3 * rng.normal(size=(features, features)) / np.sqrt(features)
    x = rng.normal(size=(samples, features)) @ mix
    if seed % 2:
        cuts = np.sort(rng.choice(np.arange(1, features), count - 1, replace=False))
        groups = np.split(rng.permutation(features), cuts)
    else:
        groups = np.split(np.arange(features), count)
    truth = np.zeros(features)
    for group in groups[: count // 3]:
        truth[group] = rng.normal(size=len(group))
    y = x @ truth + 0.5 * rng.normal(size=samples)
    largest = max(np.linalg.norm(x[:, group].T @ y) for group in groups) / samples
    return x, y, groups, (0.05, 0.1, 0.2, 0.35, 0.5)[seed % 5] * largest


def objective(weight, x, y, groups, strength, depth=2):
    """With ‖w_h‖^(2/D)."""
    norms = np.array([np.linalg.norm(weight[group]) for group in groups])
    return np.sum((y - x @ weight) ** 2) / (2 * len(y)) + strength * np.sum(norms ** (2 / depth))


def solve(x, y, groups, strength, gap=1e-10, steps=200_000):
    """Accelerated proximal gradients until the duality gap says that the objective is within `gap` of the minimum."""
    step = len(y) / np.linalg.norm(x, 2) ** 2
    weight = ahead = np.zeros(x.shape[1])
    momentum = 1.0
    for number in range(steps):
        moved = ahead - step * x.T @ (x @ ahead - y) / len(y)
        new = np.zeros_like(weight)
        for group in groups:
            norm = np.linalg.norm(moved[group])
            new[group] = moved[group] * max(0.0, 1 - step * strength / norm) if norm > 0 else 0.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        uphill = (ahead - new) @ (new - weight) > 0
        ahead, momentum = (new, 1.0) if uphill else (new + (momentum - 1) / following * (new - weight), following)
        weight = new
        if number % 50 == 0 and duality_gap(weight, x, y, groups, strength) <= gap:
            return weight
    raise AssertionError(f"not within {gap} after {steps} steps")


def duality_gap(weight, x, y, groups, strength):
    """Objective less the dual one at the residual scaled into its feasible set: the minimum is no further below."""
    residual = (y - x @ weight) / len(y)
    slope = max(np.linalg.norm(x[:, group].T @ residual) for group in groups)
    dual = residual * min(1.0, strength / slope)
    return objective(weight, x, y, groups, strength) - (dual @ y - len(y) * dual @ dual / 2)


def grid_minimum(x, y, groups, strength, depth, reach, points=21, rounds=9):
    """Least objective over a grid of weights in [-reach, reach], refined around the best, and where it is."""
    best, width = np.zeros(x.shape[1]), reach
    for _ in range(rounds):
        # 0 is on every axis: minima of non-smooth penalties are there.
        axes = [np.union1d(np.linspace(middle - width, middle + width, points), 0.0) for middle in best]
        weights = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, x.shape[1])
        errors = np.sum((y - weights @ x.T) ** 2, axis=1) / (2 * len(y))
        norms = np.stack([np.linalg.norm(weights[:, group], axis=1) for group in groups])
        best = weights[np.argmin(errors + strength * np.sum(norms ** (2 / depth), axis=0))]
        width *= 4 / points
    return objective(best, x, y, groups, strength, depth), best
