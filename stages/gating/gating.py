"""A gated module: its penalty, norms and balance, parameter groups for the optimiser, and its collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from stages.errors import GatingError
from stages.gating.gates import Gates
from stages.gating.groups import Groups


@dataclass(frozen=True, eq=False)
class GatedFamily:
    """A family of groups with its gates γ (D - 1, count); originals: v, the trained parameters of its slices."""

    groups: Groups
    gates: Gates
    originals: tuple[nn.Parameter, ...]

    @torch.no_grad()
    def sizes(self) -> Tensor:
        """Sizes of the factors of each group, (D, count), float64: ‖v_h‖, then |γ_{h,1}| ... |γ_{h,D-1}|.

        Their product is ‖w_h‖.
        """
        norms = self.groups.norms(self.originals, torch.float64)
        return torch.cat((norms[None], self.gates.factors.to(norms).abs()))


@dataclass(frozen=True, eq=False)
class Gating:
    """A module whose groups are D-gated; made by `gate`.

    model: the module, with gates; depth: D. Lists below have an entry a family, in the order given to `gate`.
    """

    model: nn.Module
    depth: int
    families: tuple[GatedFamily, ...]

    def penalty(self, strength: float) -> Tensor:
        """Gating penalty λ/D (‖v‖² + Σ_d ‖γ_d‖²), λ = strength (eq. 4 and 5): a scalar to add to the loss, smooth."""
        total: Tensor | float = 0.0
        for family in self.families:
            norms = [
                part.norm(v, family.groups.count)
                for part, v in zip(family.groups.slices, family.originals, strict=True)
            ]
            for norm in (*norms, torch.linalg.vector_norm(family.gates.factors)):
                total = norm.square() + total
        return total * (strength / self.depth)  # type: ignore[return-value]

    def equivalent(self, strength: float) -> Tensor:
        """The group-sparse penalty that gating stands for, λ Σ_h ‖w_h‖^(2/D) (eq. 1), a float64 scalar.

        It is at most `penalty`, and equal to it where all factors are balanced (Lemma A.1).
        """
        return strength * torch.stack([norms.pow(2 / self.depth).sum() for norms in self.norms()]).sum()

    def norms(self) -> list[Tensor]:
        """Norms ‖w_h‖ = ‖v_h‖ ∏_d |γ_{h,d}| of the groups, (count,), float64, in which small ones stay above 0."""
        return [family.sizes().prod(0) for family in self.families]

    def imbalance(self) -> list[Tensor]:
        """Imbalance of each group's factors, (count,): largest less smallest size, over the largest of the family.

        0 at every minimum of the penalised loss.
        """
        sizes = [family.sizes() for family in self.families]
        return [(size.amax(0) - size.amin(0)) / size.max().clamp_min(torch.finfo(size.dtype).tiny) for size in sizes]

    @torch.no_grad()
    def rebalance(self) -> None:
        """Replace every group's factors by balanced ones, ‖v_h‖ = |γ_{h,d}| = ‖w_h‖^(1/D), where the penalty is least.

        w stays as it is but for rounding. A group at zero stays there for good: its gradient is then zero too.
        """
        for family in self.families:
            sizes = family.sizes()
            even = sizes.prod(0).pow(1 / self.depth)
            share = torch.where(sizes[0] > 0, even / sizes[0], 0.0)
            for part, v in zip(family.groups.slices, family.originals, strict=True):
                v.mul_(part.spread(share.to(v), v.shape))
            factors = family.gates.factors
            factors.copy_(torch.where(factors < 0, -even, even))

    def parameter_groups(self, weight_decay: float = 0.0, strength: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for any optimiser: first what is not gated (if anything), then v and gates.

        weight_decay: of what is not gated.
        strength:     0 where `penalty` is in the loss. Otherwise λ: the penalty is then the optimiser's own weight
                      decay of 2λ/D, the same step for less time, and not to be added to the loss. Only for those that
                      add weight decay to the gradient, as SGD and Adam do and AdamW does not.
        """
        ours = {id(parameter) for parameter in self._gated()}
        others = [parameter for parameter in self.model.parameters() if id(parameter) not in ours]
        gated = {"params": self._gated(), "weight_decay": self._decay(strength)}
        return [{"params": others, "weight_decay": weight_decay}, gated] if others else [gated]

    def check(self, optimizer: Optimizer, strength: float = 0.0) -> None:
        """Raise GatingError for an optimiser that decays otherwise than `strength` says, or does not train a gate."""
        wanted = self._decay(strength)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
        for parameter in self._gated():
            name, group = names.get(id(parameter), "a gated parameter"), groups.get(id(parameter))
            if group is None and parameter.requires_grad:
                raise GatingError(
                    f"{name}: the optimiser does not have it, so that it would never change: make the optimiser of "
                    "gating.parameter_groups() after gating, or set requires_grad=False"
                )
            decay = None if group is None else group.get("weight_decay", 0.0)
            if decay is not None and decay != wanted:
                raise GatingError(
                    f"{name}: expected weight_decay {wanted:g} for what is gated, got {decay:g}: the "
                    "gating penalty is its only weight decay; make the optimiser of gating.parameter_groups()"
                )
            if wanted and group is not None and group.get("decoupled_weight_decay"):
                raise GatingError(
                    f"{name}: expected an optimiser that adds weight decay to the gradient, got "
                    f"{type(optimizer).__name__}, which does not: leave strength at 0, add gating.penalty to the loss"
                )

    @torch.no_grad()
    def collapse(self, tolerance: float = 1e-6, floor: float = 0.0) -> list[Tensor]:
        """Remove the gates: the plain module with w = v ▷ γ, and exact zeros (never -0.0) where a group is gone.

        tolerance: a group is gone at ‖w_h‖ <= tolerance times the largest of its family.
        floor:     or at ‖w_h‖ <= floor, whatever the largest.

        Gives keep, (count,) bool, True for groups that stay. The parameters are the same objects as ever, and what
        the module computes changes by no more than the groups that are gone.
        Raises GatingError for a tolerance outside [0, 1), norms that are not finite, a second collapse.
        """
        if not (0 <= tolerance < 1 and 0 <= floor < math.inf):
            raise GatingError(
                f"expected 0 <= tolerance < 1 and floor >= 0, got tolerance {tolerance} and floor {floor}"
            )
        keeps = [self._kept(number, norms, tolerance, floor) for number, norms in enumerate(self.norms())]
        names = {part.parameter for family in self.families for part in family.groups.slices}
        places = [
            (self.model.get_submodule(path), name) for path, _, name in (full.rpartition(".") for full in sorted(names))
        ]
        for (module, name), full in zip(places, sorted(names), strict=True):
            if not parametrize.is_parametrized(module, name):
                raise GatingError(f"{full}: its gates are gone already: collapse once, then gate it again")
        for family, keep in zip(self.families, keeps, strict=True):
            product = family.gates.product()
            for part, v in zip(family.groups.slices, family.originals, strict=True):
                v.mul_(part.spread(product.to(v), v.shape)).masked_fill_(~part.spread(keep.to(v.device), v.shape), 0.0)
                # Turns -0.0 into 0.0.
                v.add_(0.0)
        for module, name in places:
            parametrize.remove_parametrizations(module, name, leave_parametrized=False)
        return keeps

    def _kept(self, number: int, norms: Tensor, tolerance: float, floor: float) -> Tensor:
        """Groups (count,) bool of family `number` that stay; raises GatingError for norms that are not finite."""
        if not bool(torch.isfinite(norms).all()):
            first = self.families[number].groups.slices[0].parameter
            raise GatingError(
                f"groups of {first}: a norm is not finite, training has diverged: lower the learning rate, or go "
                "back to a checkpoint before it"
            )
        return norms > max(tolerance * float(norms.max()), floor)

    def _decay(self, strength: float) -> float:
        """The optimiser's weight decay that adds the gradient of λ/D w²: 2λ/D."""
        return 2 * strength / self.depth

    def _gated(self) -> list[nn.Parameter]:
        """All v and all gates, each once: two families may lie in one parameter."""
        every = [parameter for family in self.families for parameter in (*family.originals, family.gates.factors)]
        return list({id(parameter): parameter for parameter in every}.values())
