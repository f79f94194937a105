"""Numerical pruning and its relatives as printed, or by trying everything. NumPy in float64, X (N, D), W (D, D')."""

from __future__ import annotations

import itertools

import numpy as np


def mask_hessian(x, weight):
    """(W Wᵀ) ∘ (XᵀX), entry by entry."""
    width = x.shape[1]
    found = np.zeros((width, width))
    for i in range(width):
        for j in range(width):
            found[i, j] = sum(weight[i] * weight[j]) * sum(x[:, i] * x[:, j])
    return found


def algorithm_1(x, weight, kept, penalty, last, start, ridge=0.0):
    """The listing of Shen et al. 2025: z after steps t = 0 to `last` from `start`; kept is r, ridge is added to H_l."""
    width = x.shape[1]
    e, z = np.ones(width), start.copy()
    for _ in range(last + 1):
        h_l = mask_hessian(x, weight) + ridge * np.eye(width)
        g_l = h_l @ (z - e)
        g_r = penalty * (e @ z - kept) * e
        z = z - np.linalg.solve(h_l + penalty * np.ones((width, width)), g_l + g_r)
    return z


def closed(hessian, kept):
    """The minimiser of ½ (1 - z)ᵀ H (1 - z) with Σ z = kept, from its KKT system."""
    width = len(hessian)
    system = np.block([[hessian, np.ones((width, 1))], [np.ones((1, width)), np.zeros((1, 1))]])
    return np.linalg.solve(system, np.append(hessian.sum(1), kept))[:width]


def box(hessian, total):
    """The minimiser of ½ uᵀHu with Σ u = total and u in [0, 1]: the best of all sets of entries at a bound."""
    width, best, least = len(hessian), None, np.inf
    for places in itertools.product((0.0, 1.0, None), repeat=width):
        u = np.array([0.0 if place is None else place for place in places])
        free = [i for i, place in enumerate(places) if place is None]
        if free:
            some = hessian[np.ix_(free, free)]
            ones = np.ones((len(free), 1))
            system = np.block([[some, ones], [ones.T, np.zeros((1, 1))]])
            u[free] = np.linalg.solve(system, np.append(-(hessian @ u)[free], total - u.sum()))[:-1]
        allowed = abs(u.sum() - total) < 1e-9 and u.min() > -1e-9 and u.max() < 1 + 1e-9
        if allowed and u @ hessian @ u < least:
            best, least = u, u @ hessian @ u
    return best


def refitted(x, weight, removed):
    """W (D, D') with zero rows `removed` whose outputs are nearest to X W, by least squares on the data."""
    kept = [i for i in range(x.shape[1]) if i not in set(removed)]
    found = np.zeros_like(weight)
    found[kept] = np.linalg.lstsq(x[:, kept], x @ weight, rcond=None)[0]
    return found


def theorem_3(x, weight, removed):
    """W + δW by eq. 11, with the inverse of 2 XᵀX itself."""
    inverse = np.linalg.inv(2 * x.T @ x)
    chosen = np.eye(x.shape[1])[:, removed]
    return weight - inverse @ chosen @ np.linalg.inv(chosen.T @ inverse @ chosen) @ chosen.T @ weight


def remark_4(x, weight, removed):
    """What is lost at best, by eq. 12. The equation's ½ and its 2 XᵀX are ½ ‖XδW‖²·2: the loss of eq. 9 itself."""
    inverse = np.linalg.inv(2 * x.T @ x)
    chosen = np.eye(x.shape[1])[:, removed]
    return 0.5 * np.trace(weight.T @ chosen @ np.linalg.inv(chosen.T @ inverse @ chosen) @ chosen.T @ weight)


def losses_of_removals(x, weight, units, gone=()):
    """What removing each of the `units` (lists of rows) costs more than what is `gone`: a refit for each of them."""

    def lost(rows):
        return ((x @ (refitted(x, weight, rows) - weight)) ** 2).sum()

    before = lost(list(gone)) if gone else 0.0
    return [lost([*gone, *unit]) - before for unit in units]


def removed_one_by_one(x, weight, units):
    """The units in the order in which the cheapest goes each time, and what each costs then."""
    left, gone, order, losses = list(range(len(units))), [], [], []
    while len(left) > 1:
        each = losses_of_removals(x, weight, [units[i] for i in left], gone)
        first = int(np.argmin(each))
        order.append(left.pop(first))
        losses.append(each[first])
        gone += units[order[-1]]
    return order + left, losses


def ranked(scores, parameters, removed):
    """Which units stay, place by place, when the lowest score of all goes until `removed` parameters are gone.

    Every place keeps one; a unit larger than what is still to go is left, and all of its place with it.
    """
    kept = [[True] * len(one) for one in scores]
    stopped = set()
    while removed > 0:
        able = [
            (score, place, i)
            for place, one in enumerate(scores)
            for i, score in enumerate(one)
            if kept[place][i] and sum(kept[place]) > 1 and place not in stopped
        ]
        _, place, i = min(able)
        if parameters[place] > max(removed, min(parameters)):
            stopped.add(place)
            continue
        kept[place][i] = False
        removed -= parameters[place]
    return kept
