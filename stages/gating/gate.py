"""Gates parameter groups of any module, for training with any optimiser; `collapse` gives the plain module back.

gating = gate(model, [units(12, rows=["q.weight", "k.weight", "v.weight"], columns=["o.weight"])])
optimizer = torch.optim.SGD(gating.parameter_groups(weight_decay=1e-4), lr=0.01)
...
    loss = criterion(model(x), y) + gating.penalty(0.01)
...
(keep,) = gating.collapse()
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.utils import parametrize

from stages.errors import GatingError
from stages.gating.gates import Gated, Gates
from stages.gating.gating import GatedFamily, Gating
from stages.gating.groups import Groups, parameters_of


def gate(model: nn.Module, families: Sequence[Groups], depth: int = 2) -> Gating:
    """Put D = `depth` factors in the place of every group: w_h = v_h ∏_d γ_{h,d} (eq. 3), with γ = 1 at first.

    The parameters stay the same objects, now as v at `parametrizations.<name>.original`; gates are new ones, one
    vector (count,) a factor and family. What the module computes does not change.

    An optimiser made before does not know the gates: make it of `Gating.parameter_groups`. Gating multiplies every
    gated weight once whenever it is asked for; use `torch.nn.utils.parametrize.cached()` around a forward that asks
    for it many times. Where v is frozen (requires_grad=False) and only gates are trained, two factors give no
    sparsity, three give what the theory says of two.

    Raises GatingError for a depth below 2 and for groups that the model does not have (`groups.parameters_of`).
    """
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 2:
        raise GatingError(f"depth: expected an integer of at least 2 (2 is the group lasso), got {depth!r}")
    if not families:
        raise GatingError("families: expected at least one family of groups, got none")
    gated = []
    for family, parameters in zip(families, parameters_of(model, families), strict=True):
        gates = Gates(depth, family.count, parameters[0])
        for number, (part, parameter) in enumerate(zip(family.slices, parameters, strict=True)):
            path, _, name = part.parameter.rpartition(".")
            parametrization = Gated(gates, part.on(parameter.device), owner=number == 0)
            parametrize.register_parametrization(model.get_submodule(path), name, parametrization)
        gated.append(GatedFamily(family, gates, tuple(parameters)))
    return Gating(model, depth, tuple(gated))
