"""Algorithm 1 of Liang et al., line by line in float64, with whole matrices."""

import numpy as np


def attention(logits, visible):
    """Rows of exp(logits) ∘ visible, each divided by its sum (lines 5, 6 and 9, 10)."""
    u = np.exp(logits - logits.max(1, keepdims=True)) * visible
    return u / u.sum(1, keepdims=True)


def prune_mask(inputs, weight, visible, sparsity, penalty, eta, steps, momentum=0.0, scaling=1.0):
    """Keep mask, M and the loss before every step and after the last.

    inputs: k arrays (n, d); visible: k arrays (n, n), 1 where a query sees a key. Line 13 with c ∘ f̃, as in
    Definition D.1; data averaged over inputs and tokens, the penalty over neither.
    """
    k, (n, d) = len(inputs), inputs[0].shape
    m, v, losses = np.ones((d, d)), np.zeros((d, d)), []
    f = [attention(scaling * x @ weight @ x.T, seen) for x, seen in zip(inputs, visible, strict=True)]
    for step in range(steps + 1):
        gradient, loss = np.zeros((d, d)), penalty / 2 * (m**2).sum()
        for x, seen, dense in zip(inputs, visible, f, strict=True):
            ours = attention(scaling * x @ (m * weight) @ x.T, seen)
            c = ours - dense
            p1 = c * ours
            p2 = np.diag(p1 @ np.ones(n)) @ ours
            p = p1 - p2
            gradient += scaling * x.T @ p @ x / (k * n)
            loss += (c**2).sum() / (2 * k * n)
        losses.append(loss)
        if step < steps:
            v = momentum * v + weight * gradient + penalty * m
            m = m - eta * v
    return _keep(m, sparsity), m, losses


def _keep(m, sparsity):
    """Exactly the share that stays, the largest M; lines 18 to 22."""
    removed = int(sparsity * m.size + 0.5)
    order = sorted(range(m.size), key=lambda i: (m.flat[i], -i))
    keep = np.ones(m.size, bool)
    keep[order[:removed]] = False
    return keep.reshape(m.shape)
