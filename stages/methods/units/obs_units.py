"""Optimal brain surgeon for heads and channels: ranks units by the loss that remains once a removal is compensated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

import torch
from torch import Tensor

from stages.errors import NotPositiveDefiniteError, ParameterError
from stages.linalg.inverse import inverse_by_halves
from stages.linalg.unit_diagonal import unit_diagonal
from stages.methods.units.contract import Allocation, Compensation, Need, UnitProblem


@dataclass(frozen=True)
class ObsUnits:
    """Removes units g greedily in the order of their loss once the kept weights have been refitted,

        loss_g = tr W_g ((G⁻¹)_gg)⁻¹ W_gᵀ,   for a channel ‖w_i‖² / (G⁻¹)_ii,

    as eq. 5 of Hassibi and Stork 1993 for a weight and Remark 4 of Shen et al. 2025 for a unit. They go in `rounds`;
    after each, the weights and the inverse are those of what is left (W_R = removed in the round),

        W ← W - W_R ((G⁻¹)_RR)⁻¹ (G⁻¹)_R:,   G⁻¹ ← G⁻¹ - (G⁻¹)_:R ((G⁻¹)_RR)⁻¹ (G⁻¹)_R:,

    so that two units that stand in for each other do not both count as dispensable. The score is the highest loss met
    so far in that order, per parameter, so that a ranking over all blocks takes units in it.

    rounds:    each removes the same number of units.
    damping:   added to the diagonal of G, as a fraction of it.
    compare:   what makes losses of different blocks comparable. `loss`: outputs count by what the language-model loss
               feels of them, tr W_g ((G⁻¹)_gg)⁻¹ W_gᵀ Γ with the Fisher matrix Γ of the outputs, which takes one walk
               backwards; `median`: relative to that of the block's units of the kind; `energy`: to the output's,
               tr W G Wᵀ; `none`.
    """

    rounds: int = 24
    damping: float = 0.01
    compare: Literal["loss", "median", "energy", "none"] = "loss"
    paper: ClassVar[str] = "Hassibi, Stork 1993, Second order derivatives for network pruning; for units: here"
    allocation: ClassVar[Allocation] = "global"
    compensation: ClassVar[Compensation] = "weights"

    @property
    def needs(self) -> frozenset[Need]:
        """The Fisher matrix of the outputs, where losses are compared by it."""
        return frozenset({"fisher"}) if self.compare == "loss" else frozenset()

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ParameterError(f"rounds: expected at least 1, got {self.rounds}")
        if not 0 <= self.damping < float("inf"):
            raise ParameterError(f"damping: expected at least 0, got {self.damping:g}")

    def __call__(self, problem: UnitProblem) -> Tensor:
        """Scores (units,); raises NotPositiveDefiniteError if G has no inverse."""
        order, losses = self.removal(problem)
        highest = losses.cummax(0).values
        scores = torch.empty_like(highest)
        scores[order] = highest / (problem.parameters * self._scale(problem, highest))
        return scores.to(problem.gram.dtype)

    def _scale(self, problem: UnitProblem, losses: Tensor) -> float:
        """What losses are divided by to compare blocks; 1 where that is 0, as outputs or most losses are zero."""
        if self.compare == "energy":
            return float(((problem.dense @ problem.gram) * problem.dense).sum()) or 1.0
        if self.compare == "median":
            return float(losses.median()) / problem.parameters or 1.0
        return 1.0

    def removal(self, problem: UnitProblem) -> tuple[Tensor, Tensor]:
        """Units in the order in which they go, (units,), and the loss (units,) of each when it goes."""
        units, width = problem.columns.shape
        columns = problem.columns.to(problem.gram.device)
        places = columns.flatten()
        unit = unit_diagonal(problem.gram)
        inverse = self._inverse(unit.gram[places[:, None], places])
        weight = (problem.dense * unit.scale)[:, places]
        if self.compare == "loss":
            weight = _root(problem.fisher).to(weight) @ weight
        left, order, losses = torch.arange(units, device=columns.device), list[Tensor](), list[Tensor]()
        for number in range(self.rounds):
            going = len(left) - units * (self.rounds - 1 - number) // self.rounds
            if going < 1:
                continue
            each = self._losses(weight, inverse, width)
            gone = each.argsort(stable=True)[:going]
            order.append(left[gone])
            losses.append(each[gone])
            stays = torch.ones(len(left), dtype=torch.bool, device=left.device)
            stays[gone] = False
            left = left[stays]
            if len(left):
                weight, inverse = self._removed(weight, inverse, stays.repeat_interleave(width))
        return torch.cat(order), torch.cat(losses)

    def _inverse(self, gram: Tensor) -> Tensor:
        """Inverse of the damped Gram matrix (inputs, inputs); raises NotPositiveDefiniteError."""
        damped = gram + self.damping * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        inverse = inverse_by_halves(damped)
        return inverse if bool((inverse.diagonal() > 0).all()) else self._refused(len(gram))

    def _losses(self, weight: Tensor, inverse: Tensor, width: int) -> Tensor:
        """tr W_g ((G⁻¹)_gg)⁻¹ W_gᵀ of each of the runs of `width` inputs."""
        if width == 1:
            return weight.square().sum(0) / inverse.diagonal()
        units = len(inverse) // width
        blocks = inverse.view(units, width, units, width).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        parts = weight.view(len(weight), units, width).permute(1, 2, 0)
        return (parts * torch.cholesky_solve(parts, self._factor(blocks, len(inverse)))).sum((1, 2))

    def _removed(self, weight: Tensor, inverse: Tensor, stays: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and inverse of the inputs that stay, compensated for the others."""
        factor = self._factor(inverse[~stays][:, ~stays], len(inverse))
        across = torch.linalg.solve_triangular(factor, inverse[~stays][:, stays], upper=False)
        lost = torch.linalg.solve_triangular(factor, weight[:, ~stays].T, upper=False)
        return weight[:, stays] - lost.T @ across, inverse[stays][:, stays] - across.T @ across

    def _factor(self, matrix: Tensor, inputs: int) -> Tensor:
        """Cholesky factor of a Gram matrix of so many inputs, or of parts of its inverse."""
        factor, info = torch.linalg.cholesky_ex(matrix)
        if bool(info.any()) or not bool(torch.isfinite(factor.diagonal(dim1=-2, dim2=-1)).all()):
            self._refused(inputs)
        return factor

    def _refused(self, inputs: int) -> NoReturn:
        raise NotPositiveDefiniteError(
            f"{inputs} x {inputs} Gram matrix is not positive definite with damping {self.damping:g}: use more "
            f"calibration tokens than {inputs} or raise methods.obs_units.damping"
        )


def _root(fisher: Tensor | None) -> Tensor:
    """(d_out, d_out) R with RᵀR = Γ."""
    if fisher is None:
        raise ValueError("obs_units with compare: loss needs the Fisher matrix of the outputs")
    values, vectors = torch.linalg.eigh(fisher.double())
    return values.clamp(min=0).sqrt()[:, None] * vectors.T
