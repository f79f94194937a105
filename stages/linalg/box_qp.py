"""Quadratic programme of a relaxed mask: min ½ uᵀ H u over u in [0, 1]ᴰ whose entries add up to a given total."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError

STEPS, TOLERANCE = 60, 1e-12
"""Interior-point steps at most; complementarity and gradient that count as converged."""
NEAR = 0.995
"""Share of the way to the nearest bound that a step takes."""


def box_minimum(hessian: Tensor, total: float) -> Tensor:
    """The minimiser u (D,) by a primal-dual interior point method (Nocedal, Wright 2006, section 16.6).

    hessian: (D, D) positive semidefinite, in float64; total: of u, in (0, D).

    With Lagrange multipliers (dual variables) a of u >= 0, b of u <= 1 and c of the total, the minimum is where

        H u - c e - a + b = 0,   eᵀu = total,   a ∘ u = 0,   b ∘ (1 - u) = 0,   a, b >= 0.

    One Cholesky factor a step, of H plus a diagonal; stops where complementarity is below `TOLERANCE` of mean(diag H).
    Raises NotPositiveDefiniteError where no step can be taken, or `STEPS` are not enough.
    """
    width = len(hessian)
    scale = hessian.diagonal().mean()
    matrix = hessian / scale
    u = torch.full((width,), total / width, dtype=matrix.dtype, device=matrix.device)
    low, high = torch.ones_like(u), torch.ones_like(u)
    multiplier = torch.zeros((), dtype=matrix.dtype, device=matrix.device)
    for _ in range(STEPS):
        slope = matrix @ u - multiplier - low + high
        gap = float((low @ u + high @ (1 - u)) / (2 * width))
        if gap < TOLERANCE and float(slope.abs().max()) < 1e3 * TOLERANCE:
            break
        system = matrix.clone()
        system.diagonal().add_(low / u + high / (1 - u))
        factor, info = torch.linalg.cholesky_ex(system)
        if int(info) != 0:
            raise NotPositiveDefiniteError(
                f"{width} x {width} Hessian of a mask is not positive definite: raise the method's damping"
            )
        # Mehrotra's predictor-corrector: how far a pure Newton step would close the gap sets the centring, and what
        # its linearisation left out of the products a ∘ u and b ∘ (1 - u) is corrected for. One factor serves both.
        plain = _direction(factor, u, low, high, slope, total, torch.zeros_like(u), torch.zeros_like(u))
        reach = _reach(u, low, high, plain)
        after = ((low + reach * plain[1]) @ (u + reach * plain[0])
                 + (high + reach * plain[2]) @ (1 - u - reach * plain[0])) / (2 * width)  # fmt: skip
        centre = gap * float(after / gap) ** 3
        corrected = _direction(
            factor, u, low, high, slope, total, centre - plain[1] * plain[0], centre + plain[2] * plain[0]
        )
        reach = NEAR * _reach(u, low, high, corrected)
        u = u + reach * corrected[0]
        low, high = low + reach * corrected[1], high + reach * corrected[2]
        multiplier = multiplier + reach * corrected[3]
    else:
        raise NotPositiveDefiniteError(
            f"{width} x {width} Hessian of a mask: the box did not settle in {STEPS} steps: raise the method's damping"
        )
    return u.clamp(0, 1)


def _direction(
    factor: Tensor, u: Tensor, low: Tensor, high: Tensor, slope: Tensor, total: float, to_low: Tensor, to_high: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Newton's step in u, a, b and c toward complementarity a ∘ u = to_low, b ∘ (1 - u) = to_high.

    factor: lower Cholesky factor of H + diag(a / u + b / (1 - u)), what is left of the system once the steps in a and
    b are eliminated; low, high: a and b; slope: the residual H u - c e - a + b.
    """
    right = -slope + (to_low - low * u) / u - (to_high - high * (1 - u)) / (1 - u)
    solved = torch.cholesky_solve(torch.stack((right, torch.ones_like(u)), 1), factor)
    step_multiplier = (total - u.sum() - solved[:, 0].sum()) / solved[:, 1].sum()
    step = solved[:, 0] + step_multiplier * solved[:, 1]
    return step, (to_low - low * step) / u - low, (to_high + high * step) / (1 - u) - high, step_multiplier


def _reach(u: Tensor, low: Tensor, high: Tensor, step: tuple[Tensor, ...]) -> float:
    """Largest share of a step, at most 1, that keeps u in its box and the multipliers a and b non-negative."""
    pairs = ((u, step[0]), (1 - u, -step[0]), (low, step[1]), (high, step[2]))
    ratios = [torch.where(change < 0, -value / change, torch.inf).min() for value, change in pairs]
    return min(1.0, *(float(ratio) for ratio in ratios))
