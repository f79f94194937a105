"""Least squares on a given support: what the kept weights should be."""

from __future__ import annotations

import torch
from torch import Tensor


def conjugate_refit(target: Tensor, gram: Tensor, keep: Tensor, start: Tensor, steps: int, ridge: float) -> Tensor:
    """Conjugate gradients for min tr[(W - T)(G + ridge I)(W - T)ᵀ] over W (d_out, d_in) supported on `keep`.

    Every row is a system of its own with its own step sizes; a step is one product with G for all rows.
    `start` must be zero outside `keep`. gram: (d_in, d_in), best in unit-diagonal coordinates, where
    ridge is a fraction of the diagonal.
    """
    weight = start.clone()
    residual = _normal(target - weight, gram, ridge).mul_(keep)
    direction, size = residual.clone(), residual.square().sum(1, keepdim=True)
    for _ in range(steps):
        image = _normal(direction, gram, ridge).mul_(keep)
        length = _ratio(size, (direction * image).sum(1, keepdim=True))
        weight.addcmul_(direction, length)
        residual.addcmul_(image, length, value=-1)
        last, size = size, residual.square().sum(1, keepdim=True)
        direction.mul_(_ratio(size, last)).add_(residual)
    return weight


def exact_refit(target: Tensor, gram: Tensor, keep: Tensor, ridge: float) -> Tensor:
    """The minimum that `conjugate_refit` comes to, row by row with a Cholesky factor each: slow, for reference.

    Raises torch.linalg.LinAlgError where a row's system is singular.
    """
    weight = torch.zeros_like(target)
    wanted = _normal(target, gram, ridge)
    for row, kept in enumerate(keep):
        places = kept.nonzero().squeeze(1)
        system = gram[places[:, None], places].clone()
        system.diagonal().add_(ridge)
        factor = torch.linalg.cholesky(system)
        weight[row, places] = torch.cholesky_solve(wanted[row, places, None], factor).squeeze(1)
    return weight


def _normal(weight: Tensor, gram: Tensor, ridge: float) -> Tensor:
    return torch.addmm(weight, weight, gram, beta=ridge)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.where(denominator > 0, numerator / denominator, 0.0)
