"""SparseGPT, one linear: the inverse of what remains, computed anew for every column."""

import numpy as np

from tests.reference.magnitude import keep_of_scores


def solve(dense, gram, scope="linear", sparsity=0.5, groups=None, tile=128, damping=0.01, selection="tile"):
    """Weight and mask, float64. Counts of a tile are the differences of rounded running totals.

    selection: `tile`: a mask for `tile` columns; `column`: one for each column when it is reached.
    """
    weight = dense.astype(np.float64).copy()
    width = weight.shape[1]
    hessian = gram + damping * np.mean(np.diag(gram)) * np.eye(width)
    keep = np.ones(weight.shape, bool)
    step = groups[1] if groups else tile if selection == "tile" else 1
    for j in range(width):
        if j % step == 0:
            stop = min(j + step, width)
            keep[:, j:stop] = _select(weight, hessian, j, stop, scope, sparsity, groups)
        inverse = np.linalg.inv(hessian[j:, j:])
        removed = ~keep[:, j]
        error = np.where(removed, weight[:, j] / inverse[0, 0], 0.0)
        weight[:, j:] -= np.outer(error, inverse[0])
        weight[removed, j] = 0.0
    return np.where(keep, weight, 0.0), keep


def _select(weight, hessian, start, stop, scope, sparsity, groups):
    width = weight.shape[1]
    pivots = [np.linalg.inv(hessian[j:, j:])[0, 0] for j in range(start, stop)]
    scores = weight[:, start:stop] ** 2 / np.array(pivots)
    if groups is not None:
        return keep_of_scores(scores, scope, sparsity, groups)
    competitors = 1 if scope == "row" else len(weight)
    total = int(sparsity * competitors * width + 0.5)
    removed = _share(total, stop, width) - _share(total, start, width)
    return keep_of_scores(scores, scope, (removed / competitors) / (stop - start), None)


def _share(total, position, width):
    return int(total * position / width + 0.5)
