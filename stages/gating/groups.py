"""Families of parameter groups, gated, penalised and removed together, and their checks against a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.errors import GatingError
from stages.gating.slices import EvenSlices, LabelledSlices, Slices


@dataclass(frozen=True)
class Groups:
    """A family of `count` groups w_h, each the union of its slices in one or several parameters (A_h in eq. 1).

    Where queries share keys (grouped-query attention), a group is a key-value head with its queries:
    `units(kv_heads, rows=["q_proj.weight", "k_proj.weight", "v_proj.weight"], columns=["o_proj.weight"])`.
    """

    count: int
    slices: tuple[Slices, ...]

    def norms(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """Norms ‖w_h‖, (count,), of tensors shaped as the slices' parameters, in their order.

        Differentiable; its gradient at 0 is 0. dtype: to accumulate in; float64 tells norms far below 1e-19.
        """
        parts = [part.norms(tensor, self.count, dtype) for part, tensor in zip(self.slices, tensors, strict=True)]
        return torch.linalg.vector_norm(torch.stack([part.to(parts[0]) for part in parts]), dim=0)


def units(count: int, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Groups:
    """The family of heads or channels: unit h is the h-th equal slice of some parameters' rows and of others' columns.

    rows:    parameters that make the units, with biases: q, k and v, or gate and up.
    columns: parameters that read them: o, or down.
    """
    return Groups(count, (*(EvenSlices(name) for name in rows), *(EvenSlices(name, dim=1) for name in columns)))


def whole_parameters(names: Sequence[str]) -> Groups:
    """The family whose groups are whole parameters, one each, by their names."""
    return Groups(len(names), tuple(LabelledSlices(name, torch.tensor(at)) for at, name in enumerate(names)))


def parameters_of(model: nn.Module, families: Sequence[Groups]) -> list[list[nn.Parameter]]:
    """The parameters of each family, in the order of its slices, after all checks.

    Raises GatingError for a parameter that is not there, is shared by two names or cannot be cut into these groups, for
    a group without weights and for groups that overlap.
    """
    known = dict(model.named_parameters(remove_duplicate=False))
    parameters = [[_parameter(known, part, family.count) for part in family.slices] for family in families]
    for number, family in enumerate(families):
        _check_occupied(family, number)
    _check_apart(families, known)
    return parameters


def _parameter(known: dict[str, nn.Parameter], part: Slices, count: int) -> nn.Parameter:
    """The parameter of some slices; raises GatingError for one that cannot be gated or cut into `count` groups."""
    name = part.parameter
    if name not in known:
        module, _, leaf = name.rpartition(".")
        if f"{module}.parametrizations.{leaf}.original".lstrip(".") in known:
            raise GatingError(
                f"{name}: expected a plain parameter, got a parametrized one: collapse or remove its "
                "parametrization first"
            )
        raise GatingError(f"{name}: no such parameter: the model has {_examples(known)}")
    parameter = known[name]
    if not parameter.is_floating_point():
        raise GatingError(
            f"{name}: expected floating-point weights, got {parameter.dtype}: gate a model before it is quantised"
        )
    shared = [other for other, value in known.items() if value is parameter and other != name]
    if shared:
        raise GatingError(
            f"{name} is the same tensor as {shared[0]}, which a gate would not reach: untie them, or gate "
            "other parameters"
        )
    if count < 1:
        raise GatingError(f"{name}: expected at least 1 group, got {count}")
    part.check(parameter.shape, count)
    return parameter


def _check_occupied(family: Groups, number: int) -> None:
    """Raise GatingError for a family in which a group has no weights."""
    if not family.slices:
        raise GatingError(f"family {number} of {family.count} groups has no slices: expected at least one parameter")
    occupied = torch.stack([part.occupied(family.count) for part in family.slices]).any(0)
    if not bool(occupied.all()):
        empty = int((~occupied).nonzero()[0])
        names = ", ".join(part.parameter for part in family.slices)
        raise GatingError(f"group {empty} of {family.count} has no weights in {names}: correct count or the labels")


def _check_apart(families: Sequence[Groups], known: dict[str, nn.Parameter]) -> None:
    """Raise GatingError where a weight is in two groups: they are disjoint (eq. 1)."""
    by_name: dict[str, list[Slices]] = {}
    for part in (part for family in families for part in family.slices):
        by_name.setdefault(part.parameter, []).append(part)
    for name, several in by_name.items():
        if len(several) == 1:
            continue
        counts = torch.zeros(known[name].shape, dtype=torch.int32)
        for part in several:
            counts += part.covered(counts.shape).cpu()
        if int(counts.max()) > 1:
            raise GatingError(
                f"{name}: some of its weights are in two groups: expected each in one at most; drop one of them"
            )


def _examples(known: dict[str, nn.Parameter], shown: int = 5) -> str:
    return ", ".join(list(known)[:shown]) + (", ..." if len(known) > shown else "") if known else "none"
