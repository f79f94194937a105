"""Gradient descent on the masks of W_Q and W_K, every attention matrix whole, gradients by autograd, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(inputs: Tensor, query: Tensor, key: Tensor, heads: int, key_heads: int) -> Tensor:
    """Causal attention matrices (k, heads, n, n) of inputs (k, n, width) for weights (d_out, width)."""
    k, n, _ = inputs.shape
    q = (inputs @ query.T).view(k, n, heads, -1).transpose(1, 2)
    p = (inputs @ key.T).view(k, n, key_heads, -1).transpose(1, 2).repeat_interleave(heads // key_heads, 1)
    logits = q @ p.mT / q.shape[-1] ** 0.5
    return torch.softmax(logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf), -1)


def learnt_masks(
    inputs: Tensor, query: Tensor, key: Tensor, heads: int, key_heads: int, penalty: float, step: float, steps: int,
    momentum: float,
) -> Tensor:  # fmt: skip
    """The real masks of q and k, stacked, after so many steps on all inputs."""
    dense = attention(inputs, query, key, heads, key_heads)
    masks = [torch.ones_like(query), torch.ones_like(key)]
    velocities = [torch.zeros_like(query), torch.zeros_like(key)]
    for _ in range(steps):
        live = [mask.clone().requires_grad_() for mask in masks]
        pruned = attention(inputs, live[0] * query, live[1] * key, heads, key_heads)
        loss = 0.5 * (pruned - dense).square().sum() / (len(inputs) * inputs.shape[1])
        loss = loss + 0.5 * penalty * (live[0].square().sum() + live[1].square().sum())
        for i, gradient in enumerate(torch.autograd.grad(loss, live)):
            velocities[i] = momentum * velocities[i] + gradient
            masks[i] = masks[i] - step * velocities[i]
    return torch.cat(masks)
