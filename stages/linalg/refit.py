"""Refit of kept weights for a given mask: least squares by conjugate gradients, or exactly by Cholesky."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError

PIECE = 256
"""Rows that go through all steps together: few enough for a cache, enough for an efficient product."""


def conjugate_refit(target: Tensor, gram: Tensor, keep: Tensor, start: Tensor, steps: int, ridge: float) -> Tensor:
    """Conjugate-gradient refit: min tr[(W - T)(G + ridge I)(W - T)ᵀ] over W (d_out, d_in) supported on `keep`.

    Every row is a system of its own with its own step sizes; a step is one product with G for all rows.
    `start` must be zero outside `keep`. gram: (d_in, d_in), best in unit-diagonal coordinates, where
    ridge is a fraction of the diagonal.
    """
    weight = start.clone(memory_format=torch.contiguous_format)
    residual = _normal(target - weight, gram, ridge).mul_(keep)
    _descend(gram, keep, ridge, steps, weight, residual)
    return weight


def guarded_refit(target: Tensor, gram: Tensor, keep: Tensor, start: Tensor, steps: int, ridge: float) -> Tensor:
    """`conjugate_refit` that is never worse than the mask M = keep ⊙ T without a refit, for one product more.

    Every row begins at the best point of the line through M and `start`, so that its ridged error is at
    most that of both, and a step never raises it. Then the error without the ridge is at most M's too: of
    all weights on `keep`, M is the nearest to T, so that the ridge's share cannot have fallen.
    """
    weight = torch.where(keep, target, 0.0)
    residual = _normal(target - weight, gram, ridge).mul_(keep)
    step = start - weight
    image = _normal(step, gram, ridge).mul_(keep)
    length = _ratio((step * residual).sum(1, keepdim=True), (step * image).sum(1, keepdim=True))
    weight.addcmul_(step, length)
    residual.addcmul_(image, length, value=-1)
    del step, image
    _descend(gram, keep, ridge, steps, weight, residual)
    return weight


def exact_refit(target: Tensor, gram: Tensor, keep: Tensor, ridge: float) -> Tensor:
    """Exact refit: the minimum that `conjugate_refit` converges to, by a Cholesky factor for each row; slow.

    Raises NotPositiveDefiniteError where a row's system is singular.
    """
    weight = torch.zeros_like(target)
    wanted = _normal(target, gram, ridge)
    for row, kept in enumerate(keep):
        places = kept.nonzero().squeeze(1)
        system = gram[places[:, None], places]
        system.diagonal().add_(ridge)
        factor, info = torch.linalg.cholesky_ex(system)
        if int(info):
            raise NotPositiveDefiniteError(
                f"the {len(places)} inputs that row {row} keeps have no positive definite Gram matrix with ridge "
                f"{ridge:g}: raise the ridge of the refit, or use more calibration tokens than {len(places)}"
            )
        weight[row, places] = torch.cholesky_solve(wanted[row, places, None], factor).squeeze(1)
    return weight


def _descend(gram: Tensor, keep: Tensor, ridge: float, steps: int, weight: Tensor, residual: Tensor) -> None:
    """Conjugate gradients in place, from a weight and its residual; pieces of rows one after another."""
    fused = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)
    step = _fused_step if fused else plain_step
    piece = PIECE * torch.get_num_threads() if fused else max(1, len(weight))
    for kept, part, left in zip(keep.split(piece), weight.split(piece), residual.split(piece), strict=True):
        direction, size = left.clone(), left.square().sum(1)
        image = torch.empty_like(direction)
        for _ in range(steps):
            torch.mm(direction, gram, out=image)
            step(image, kept, ridge, part, left, direction, size)


def plain_step(
    image: Tensor, keep: Tensor, ridge: float, weight: Tensor, residual: Tensor, direction: Tensor, size: Tensor
) -> None:
    """One conjugate-gradient step in place, in plain tensor operations on any device.

    All (rows, d) but size (rows,), the squared norm of each residual; image: direction @ gram, overwritten.
    """
    image.add_(direction, alpha=ridge).mul_(keep)
    length = _ratio(size, (direction * image).sum(1))[:, None]
    weight.addcmul_(direction, length)
    residual.addcmul_(image, length, value=-1)
    last = size.clone()
    torch.sum(residual.square(), 1, out=size)
    direction.mul_(_ratio(size, last)[:, None]).add_(residual)


def _fused_step(
    image: Tensor, keep: Tensor, ridge: float, weight: Tensor, residual: Tensor, direction: Tensor, size: Tensor
) -> None:
    from stages.linalg.kernels.refit_cpu import conjugate_step

    state = weight.numpy(), residual.numpy(), direction.numpy(), size.numpy()
    conjugate_step(image.numpy(), keep.contiguous().numpy(), ridge, *state, threads=torch.get_num_threads())


def _normal(weight: Tensor, gram: Tensor, ridge: float) -> Tensor:
    """W (G + ridge I)."""
    return torch.addmm(weight, weight, gram, beta=ridge)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, 0 where the denominator is not positive: such a row has converged."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)
