"""Magnitude, one linear: sort and cut."""

import numpy as np


def keep_of_scores(scores: np.ndarray, scope: str, sparsity: float, groups: tuple[int, int] | None) -> np.ndarray:
    """The mask by sorting: smallest scores go, among equals the last."""
    if groups is not None:
        n_keep, size = groups
        pieces = [scores[i : i + 1, j : j + size] for i in range(len(scores)) for j in range(0, scores.shape[1], size)]
        masks = [_cut(piece, size - n_keep) for piece in pieces]
        return np.concatenate(masks).reshape(scores.shape)
    if scope == "row":
        return np.concatenate([_cut(row[None], int(sparsity * row.size + 0.5)) for row in scores])
    return _cut(scores, int(sparsity * scores.size + 0.5))


def _cut(scores: np.ndarray, removed: int) -> np.ndarray:
    flat = scores.flatten()
    order = sorted(range(flat.size), key=lambda i: (flat[i], -i))
    keep = np.ones(flat.size, bool)
    keep[order[:removed]] = False
    return keep.reshape(scores.shape)


def solve(dense, gram, scope="linear", sparsity=0.5, groups=None):
    """Weight and mask, float64."""
    keep = keep_of_scores(np.abs(dense), scope, sparsity, groups)
    return np.where(keep, dense, 0.0), keep
