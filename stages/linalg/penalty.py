"""ADMM on a support: weights W that follow the target's outputs, Z that has the zeros, and a price for W ≠ Z.

The scaled dual U is zero where a weight is kept and Z is zero where it is not, so that one matrix holds
both: the total Y = W + U, with Z = keep ⊙ Y and U = Y - Z. All in unit-diagonal coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError
from stages.linalg.inverse import inverse_by_halves


def response(gram: Tensor, ridge: float, penalty: float) -> Tensor:
    """ρ (G + (ridge + ρ) I)⁻¹, (d, d): how W - T answers to Z - U - T, for the penalty ρ.

    W = (T H + ρ(Z - U)) (H + ρI)⁻¹ with H = G + ridge I is T + (Z - U - T) times this matrix, so that
    T H is never needed.
    Raises NotPositiveDefiniteError.
    """
    damped = gram.clone()
    damped.diagonal().add_(ridge + penalty)
    inverse = inverse_by_halves(damped)
    if not bool(torch.isfinite(inverse.diagonal()).all()):
        raise NotPositiveDefiniteError(
            f"{gram.shape[0]} x {gram.shape[1]} Gram matrix is not positive definite with {ridge + penalty:g} added "
            "to its unit diagonal: its inputs may be all zero on this calibration text: use more or other text, raise "
            "the method's ridge, or use a rule that leaves this linear dense (sparsity: 0)"
        )
    return inverse.mul_(penalty)


def settle(target: Tensor, move: Tensor, total: Tensor, keep: Tensor, relaxation: float, ratio: float) -> None:
    """Y ← a W + (1 - a) Z + c U in place, with W = T + move, a the relaxation and c the ratio; all (d_out, d_in).

    ratio: the last penalty over the present one: the scaled dual is the dual over the penalty.
    """
    if not _fused(target):
        settle_plain(target, move, total, keep, relaxation, ratio)
        return
    from stages.linalg.kernels import penalty_cpu

    arrays = target.numpy(), move.numpy(), total.numpy(), keep.numpy()
    penalty_cpu.settle(*arrays, relaxation, ratio, torch.get_num_threads())


def mirror(target: Tensor, total: Tensor, keep: Tensor, ratio: float, out: Tensor) -> Tensor:
    """Z - c U - T into `out`, which comes back: what `response` answers to; c as in `settle`."""
    if not _fused(target):
        return mirror_plain(target, total, keep, ratio, out)
    from stages.linalg.kernels import penalty_cpu

    arrays = target.numpy(), total.numpy(), keep.numpy(), ratio, out.numpy()
    penalty_cpu.mirror(*arrays, torch.get_num_threads())
    return out


def settle_plain(target: Tensor, move: Tensor, total: Tensor, keep: Tensor, relaxation: float, ratio: float) -> None:
    """`settle` on any device."""
    share = torch.where(keep, total.new_tensor(1 - relaxation), ratio)
    total.mul_(share).add_(target, alpha=relaxation).add_(move, alpha=relaxation)


def mirror_plain(target: Tensor, total: Tensor, keep: Tensor, ratio: float, out: Tensor) -> Tensor:
    """`mirror` on any device."""
    return torch.sub(total * torch.where(keep, total.new_tensor(1.0), -ratio), target, out=out)


def _fused(target: Tensor) -> bool:
    return target.device.type == "cpu" and target.dtype in (torch.float32, torch.float64)
