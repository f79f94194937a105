"""Iterative hard thresholding, one linear: everything computed anew at every step, one row at a time at the end."""

import numpy as np

from tests.reference.magnitude import keep_of_scores

SETTINGS = {"schedule": "projected", "iterations": 40, "mu": 0.1, "refine": "cg", "refine_steps": 10}


def solve(dense, gram, scope="linear", sparsity=0.5, groups=None, momentum=False, **settings):
    """Weight and mask, float64."""
    weight, keep, _ = solve_traced(dense, gram, scope, sparsity, groups, momentum, **settings)
    return weight, keep


def solve_traced(dense, gram, scope, sparsity, groups, momentum, **settings):
    """Weight, mask, and what every step came to: objective, count, whether by momentum, λ."""
    settings = SETTINGS | settings
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-12 * np.mean(np.diag(gram))))
    unit = gram / np.outer(scale, scale)
    np.fill_diagonal(unit, 1.0)
    problem = Problem(dense.astype(np.float64) * scale, unit, scope, sparsity, groups, settings)
    weight, trace = iterate(problem, momentum)
    keep = problem.filled_up(weight) if settings["schedule"] == "paper" else problem.select(np.abs(weight), 1.0)
    refined = problem.refined(weight, keep)
    return np.where(keep, refined / scale, 0.0), keep, trace


class Problem:
    """f(W) = ½ tr[(W - T) A (W - T)ᵀ] with its rules."""

    def __init__(self, target, unit, scope, sparsity, groups, settings):
        self.target, self.unit, self.settings = target, unit, settings
        self.scope, self.sparsity, self.groups = scope, sparsity, groups
        self.ridged = unit + settings["mu"] * np.eye(len(unit))
        self.alpha = 0.95 / np.linalg.eigvalsh(self.ridged)[-1]

    def loss(self, weight):
        return np.sum((weight - self.target) @ self.ridged * (weight - self.target)) / 2

    def gradient(self, weight):
        return (weight - self.target) @ self.ridged

    def ahead(self, weight):
        return weight - self.alpha * self.gradient(weight)

    def select(self, scores, progress):
        """The mask at this progress from 0 to 1 on the cubic schedule."""
        final = keep_of_scores(scores, self.scope, self.sparsity, self.groups)
        left = (1 - progress) ** 3
        if self.groups is not None:
            spare = int(left * np.sum(~final))
            return final | keep_of_scores(np.where(final, -1.0, scores), "linear", 1 - spare / final.size, None)
        pieces = scores if self.scope == "row" else scores.reshape(1, -1)
        removed = int(self.sparsity * pieces.shape[1] + 0.5)
        kept = pieces.shape[1] - removed + int(left * removed)
        masks = [keep_of_scores(piece[None], "linear", 1 - kept / piece.size, None) for piece in pieces]
        return np.concatenate(masks).reshape(scores.shape)

    def filled_up(self, weight):
        """The largest of what survived, then the largest of the last gradient step."""
        ahead = np.abs(self.ahead(weight))
        order = np.where(weight != 0, np.abs(weight) + 1 + ahead.max(), ahead)
        return keep_of_scores(order, self.scope, self.sparsity, self.groups)

    def refined(self, weight, keep):
        if self.settings["refine"] == "none":
            return np.where(keep, weight, 0.0)
        start = np.where(keep, self.ahead(weight), 0.0)
        if self.settings["refine"] == "gradient":
            for _ in range(self.settings["refine_steps"] - 1):
                start = np.where(keep, self.ahead(start), 0.0)
            return start
        rows = [self.conjugate_row(*row) for row in zip(self.target, start, keep, strict=True)]
        return np.array(rows)

    def conjugate_row(self, target, start, keep):
        """Conjugate gradients on the kept entries, from the best point between mask and start."""
        system, wanted = self.ridged[np.ix_(keep, keep)], (self.ridged @ target)[keep]
        weight, step = target[keep], start[keep] - target[keep]
        curvature = step @ system @ step
        if curvature > 0:
            weight = weight + step * (step @ (wanted - system @ weight)) / curvature
        residual = wanted - system @ weight
        direction = residual
        for _ in range(self.settings["refine_steps"]):
            if residual @ residual == 0:
                break
            length = residual @ residual / (direction @ system @ direction)
            weight = weight + length * direction
            following = residual - length * (system @ direction)
            direction = following + direction * (following @ following) / (residual @ residual)
            residual = following
        out = np.zeros(len(target))
        out[keep] = weight
        return out


def iterate(problem, momentum):
    """Algorithm 1, lines 2 to 6."""
    weight = before = probe = problem.target
    settings, last, now, trace = problem.settings, 0.0, 1.0, []
    paper = settings["schedule"] == "paper"
    penalty = _first_penalty(problem) if paper and problem.groups is None else None
    for number in range(settings["iterations"]):
        if penalty is not None:
            penalty = _next_penalty(problem, penalty, weight)
        progress = 1.0 if paper else (number + 1) / settings["iterations"]

        def cut(values, penalty=penalty, progress=progress):
            if penalty is None:
                return np.where(problem.select(np.abs(values), progress), values, 0.0)
            return np.where(np.abs(values) > np.sqrt(2 * problem.alpha * penalty), values, 0.0)

        def objective(weight, penalty=penalty):
            return problem.loss(weight) + (0.0 if penalty is None else np.sum(penalty * (weight != 0)))

        plain, accepted = cut(problem.ahead(weight)), False
        if momentum:
            point = weight + last / now * (probe - weight) + (last - 1) / now * (weight - before)
            probe = cut(problem.ahead(point))
            change = plain - weight
            bound = problem.loss(weight) + np.sum(change * problem.gradient(weight))
            bound += np.sum(change**2) / (2 * problem.alpha)
            accepted = objective(probe) <= objective(plain) or (not paper and problem.loss(probe) <= bound)
        before, weight = weight, probe if accepted else plain
        last, now = now, (np.sqrt(4 * now**2 + 1) + 1) / 2
        mean = None if penalty is None else float(np.mean(penalty))
        trace.append((objective(weight), int(np.sum(weight != 0)), accepted, mean))
    return weight, trace


def _first_penalty(problem):
    pieces = problem.target if problem.scope == "row" else problem.target.reshape(1, -1)
    rank = max(1, round(0.01 * pieces.shape[1]))
    return np.sort(np.abs(pieces), axis=1)[:, rank - 1 : rank] ** 2 / (2 * problem.alpha)


def _next_penalty(problem, penalty, weight):
    pieces = weight if problem.scope == "row" else weight.reshape(1, -1)
    total = pieces.shape[1]
    wanted = total - int(problem.sparsity * total + 0.5)
    return penalty * (1 + (np.sum(pieces != 0, axis=1, keepdims=True) - wanted) / total)
