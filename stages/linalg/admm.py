"""ADMM updates for a given mask: W follows the target's outputs, its copy Z has the zeros (Boža 2024, section 3).

With the scaled dual U of the constraint W = Z, penalty ρ and H = G + ridge I, a step for the target T is

    W ← (T H + ρ(Z - U)) (H + ρI)⁻¹,   Z ← keep ⊙ (W + U),   U ← U + W - Z.

U is zero where a weight is kept and Z is zero where it is not, so that one matrix holds both: the total Y = W + U,
with Z = keep ⊙ Y and U = Y - Z. All in unit-diagonal coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError
from stages.linalg.inverse import inverse_by_halves


def admm_operator(gram: Tensor, ridge: float, penalty: float) -> Tensor:
    """ρ (G + (ridge + ρ) I)⁻¹, (d, d), for the penalty ρ: the matrix of the ADMM W-update.

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


def admm_rhs(target: Tensor, total: Tensor, keep: Tensor, ratio: float, out: Tensor) -> Tensor:
    """Right-hand side of the ADMM W-update, out ← Z - c U - T, all (d_out, d_in); returns `out`.

    ratio: c, the last penalty over the present one, since the scaled dual U is the dual over the penalty.
    """
    if not _fused(target):
        return admm_rhs_plain(target, total, keep, ratio, out)
    from stages.linalg.kernels import admm_cpu

    arrays = target.numpy(), total.numpy(), keep.numpy(), ratio, out.numpy()
    admm_cpu.admm_rhs(*arrays, torch.get_num_threads())
    return out


def admm_update(target: Tensor, move: Tensor, total: Tensor, keep: Tensor, relaxation: float, ratio: float) -> None:
    """Z- and U-update of ADMM in place in their total, Y ← a W + (1 - a) Z + c U with W = T + move; all (d_out, d_in).

    relaxation: a, 1 for none (over-relaxed ADMM: Boyd et al. 2011, section 3.4.3); ratio: c as in `admm_rhs`.
    """
    if not _fused(target):
        admm_update_plain(target, move, total, keep, relaxation, ratio)
        return
    from stages.linalg.kernels import admm_cpu

    arrays = target.numpy(), move.numpy(), total.numpy(), keep.numpy()
    admm_cpu.admm_update(*arrays, relaxation, ratio, torch.get_num_threads())


def admm_rhs_plain(target: Tensor, total: Tensor, keep: Tensor, ratio: float, out: Tensor) -> Tensor:
    """`admm_rhs` in plain tensor operations, on any device."""
    return torch.sub(total * torch.where(keep, total.new_tensor(1.0), -ratio), target, out=out)


def admm_update_plain(
    target: Tensor, move: Tensor, total: Tensor, keep: Tensor, relaxation: float, ratio: float
) -> None:
    """`admm_update` in plain tensor operations, on any device."""
    share = torch.where(keep, total.new_tensor(1 - relaxation), ratio)
    total.mul_(share).add_(target, alpha=relaxation).add_(move, alpha=relaxation)


def _fused(target: Tensor) -> bool:
    """Whether the compiled kernels take these tensors."""
    return target.device.type == "cpu" and target.dtype in (torch.float32, torch.float64)
