"""ADMM pruning: alternates a least-squares fit to the outputs and a projection to the sparse weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.admm import admm_operator, admm_rhs, admm_update
from stages.linalg.masks import removed_count
from stages.linalg.refit import guarded_refit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution, masked_solution


@dataclass(frozen=True)
class Admm:
    """Mask and weights by the alternating direction method of multipliers (Boža 2024, section 3).

    Minimises tr[(W - T)(G + ridge I)(W - T)ᵀ] over W with an exact number of zeros, in unit-diagonal
    coordinates, with

        W ← (T (G + ridge I) + ρ(Z - U)) (G + (ridge + ρ) I)⁻¹,   Z ← keep ⊙ (W + U),   U ← U + W - Z,

    where `keep` are the largest |W + U|, chosen before the first step from |T| and after each of the first
    `selections` steps anew; then the kept weights by conjugate gradients.

    Departs from the paper, which is penalty = penalty_end = penalties = relaxation = 1, iterations = 20,
    selections = 14, gradual = True, refine_steps = 0 (the first of its 15 masks is the one before the steps):
    - the penalty ρ grows geometrically over the steps, in `penalties` stages; U is rescaled with it;
    - W is over-relaxed to a W + (1 - a) Z where Z and U are updated;
    - all weights to be removed go at once, unless `gradual`;
    - conjugate gradients at the end, never worse than the mask alone (which is not assured without them);
    - the counts are exact; gradual N:M removes from every group the same number, not the smallest first.

    iterations:   steps, each a product with a d_in x d_in matrix, at least 1.
    penalty:      ρ of the first step, as a fraction of the Gram matrix's unit diagonal, more than 0.
    penalty_end:  ρ of the last step.
    penalties:    how many values ρ takes, each with a factorisation.
    relaxation:   a, between 1 (none) and 2, which is excluded.
    selections:   steps after which the mask is chosen anew, 0 to iterations.
    gradual:      whether the removed share grows over them, as 1 - (1 - t)³ of the whole.
    ridge:        added to the unit diagonal, at least 0.
    refine_steps: steps of conjugate gradients on the final mask; 0: Z as it is.
    """

    iterations: int = 10
    penalty: float = 0.3
    penalty_end: float = 1.0
    penalties: int = 5
    relaxation: float = 1.5
    selections: int = 10
    gradual: bool = False
    ridge: float = 0.1
    refine_steps: int = 6

    paper: ClassVar[str] = "Boža 2024, arXiv:2401.02938"
    refits: ClassVar[bool] = True
    scopes: ClassVar[tuple[Literal["linear", "row"], ...]] = ("linear", "row")
    idle: ClassVar[dict[str, tuple[str, tuple[object, ...]]]] = {
        "penalty_end": ("penalties", (1,)),
        "gradual": ("selections", (0,)),
    }

    def __post_init__(self) -> None:
        for name in ("iterations", "penalties"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in ("penalty", "penalty_end"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ParameterError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if not 1 <= self.relaxation < 2:
            raise ParameterError(f"relaxation: expected at least 1 and less than 2, got {self.relaxation}")
        if not 0 <= self.selections <= self.iterations:
            raise ParameterError(f"selections: expected 0 to iterations ({self.iterations}), got {self.selections}")
        if not 0 <= self.ridge < float("inf"):
            raise ParameterError(f"ridge: expected at least 0, got {self.ridge}")
        if self.refine_steps < 0:
            raise ParameterError(f"refine_steps: expected at least 0, got {self.refine_steps}")

    def __call__(self, problem: LinearProblem, budget: Budget) -> LinearSolution:
        """Mask and weights; raises NotPositiveDefiniteError if the Gram matrix with ridge and penalty is singular."""
        unit = unit_diagonal(problem.gram)
        target = (problem.target * unit.scale).contiguous()
        total, keep = self._alternate(target, unit.gram, problem.rows, budget)
        weight = total.mul_(keep)
        if self.refine_steps:
            weight = guarded_refit(target, unit.gram, keep, weight, self.refine_steps, self.ridge)
        # A row that loses nothing is at its minimum, which no rounding shall move.
        whole = keep.all(1, keepdim=True)
        return masked_solution(torch.where(whole, problem.target, weight / unit.scale), keep, self.ridge)

    def penalties_of_steps(self) -> list[float]:
        """ρ of every step, growing geometrically from `penalty` to `penalty_end` in `penalties` stages."""
        stages = min(self.penalties, self.iterations)
        growth = (self.penalty_end / self.penalty) ** (1 / max(1, stages - 1))
        return [self.penalty * growth ** (step * stages // self.iterations) for step in range(self.iterations)]

    def _alternate(self, target: Tensor, gram: Tensor, rows: tuple[int, ...], budget: Budget) -> tuple[Tensor, Tensor]:
        """W + U after the last step, (d_out, d_in), and the mask."""
        penalties = self.penalties_of_steps()
        total, buffer, move = target.clone(), torch.empty_like(target), torch.empty_like(target)
        keep = self._select(total, rows, budget, 0, buffer)
        last, answer = 0.0, gram
        for step, penalty in enumerate(penalties):
            ratio = last / penalty if last else 1.0
            if penalty != last:
                last, answer = penalty, admm_operator(gram, self.ridge, penalty)
            torch.mm(admm_rhs(target, total, keep, ratio, buffer), answer, out=move)
            admm_update(target, move, total, keep, self.relaxation, ratio)
            if step < self.selections:
                keep = self._select(total, rows, budget, step + 1, buffer)
        return total, keep

    def _select(self, total: Tensor, rows: tuple[int, ...], budget: Budget, step: int, buffer: Tensor) -> Tensor:
        if self.gradual:
            # The removed share after t of the selections is 1 - (1 - t)³: fast at first, when little is lost by it.
            budget = partial_budget(budget, 1 - (1 - (step + 1) / (self.selections + 1)) ** 3, rows, total.shape[1])
        return budget.select(torch.abs(total, out=buffer), rows)


def partial_budget(budget: Budget, share: float, rows: tuple[int, ...], width: int) -> Budget:
    """The budget that removes only this share, 0 to 1, of what `budget` removes, to the nearest whole number."""
    groups, kept = budget.groups, budget.kept
    if groups is not None:
        groups = (groups[1] - removed_count(groups[1] - groups[0], share), groups[1])
    if kept is not None:
        totals = [count * width for count in rows]
        kept = tuple(all_ - removed_count(all_ - some, share) for all_, some in zip(totals, kept, strict=True))
    return replace(budget, sparsity=budget.sparsity * share, groups=groups, kept=kept)
