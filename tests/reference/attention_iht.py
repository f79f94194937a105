"""Hard thresholding for the attention matrix, every matrix whole, gradients by autograd, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.reference.attention_gd import attention


def thresholded(
    batches: list[Tensor], order: list[int], dense: tuple[Tensor, Tensor], heads: tuple[int, int], gram: Tensor,
    start: Tensor, keep: Tensor, rate: float, warm: int, penalty: float,
) -> Tensor:  # fmt: skip
    """Weights of q and k, stacked, after one step for each of `order`; each linear keeps as many as it did."""
    scale = gram.diagonal().sqrt()
    unit, target = gram / scale / scale[:, None], torch.cat(dense) * scale
    energy = (target @ unit @ target.T).trace()
    first = attention(batches[0], *dense, *heads).square().sum() / len(batches[0])
    rows = [len(part) for part in dense]
    size = torch.cat([part.square().mean().sqrt().expand(len(part), 1) for part in target.split(rows)])
    latent, keep = start * scale, keep.clone()
    mean, square = torch.zeros_like(latent), torch.zeros_like(latent)
    for step, batch in enumerate(order):
        moves = step < len(order) * 2 / 3
        live = (latent * keep).requires_grad_()
        query, key = (live / scale).split(rows)
        away = attention(batches[batch], query, key, *heads) - attention(batches[batch], *dense, *heads)
        loss = away.square().sum() / (first * len(batches[batch]))
        loss = loss + penalty * ((live - target) @ unit @ (live - target).T).trace() / energy
        (gradient,) = torch.autograd.grad(loss, live)
        if not moves:
            latent, gradient = latent * keep, gradient * keep
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        share = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / len(order)))
        spread = (square / (1 - 0.95 ** (step + 1))).sqrt() + torch.finfo(latent.dtype).tiny
        latent = latent - rate * share / (1 - 0.9 ** (step + 1)) * size * mean / spread
        if moves:
            parts = []
            for part, mask in zip(latent.split(rows), keep.split(rows), strict=True):
                chosen = torch.zeros_like(mask).flatten()
                chosen[part.abs().flatten().argsort(descending=True, stable=True)[: int(mask.sum())]] = True
                parts.append(chosen.view_as(mask))
            keep = torch.cat(parts)
        else:
            latent = latent * keep
    return latent * keep / scale
