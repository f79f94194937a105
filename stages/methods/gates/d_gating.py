"""D-gating: group-sparse training of gates on a language model's heads and channels, on the calibration text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from stages.errors import ParameterError


@dataclass(frozen=True)
class DGating:
    """Scales every head (key-value group) and every MLP channel by a gate, and trains the gates to be sparse.

    A unit's scale s multiplies what the linear that reads it (o, down) takes from it: at s = 0 the unit is out of the
    model. Minimised over the calibration windows is

        loss + λ Σ_u c_u |s_u|^(2/D),

    the loss of the language model, c_u the unit's share of all units' parameters, so that a unit goes where what it
    does for the loss is less than λ for its parameters. As in the paper the penalty stands as a smooth one, of D
    factors whose product is s_u: λ c_u/D Σ_d γ_{u,d}² (eq. 4), whose minimum over factors of one product is
    λ c_u |s_u|^(2/D) (Theorem 2.2; here the group is the number s_u itself).

    weights `frozen` trains nothing but gates, `trained` the linears of the blocks too, `lora` adapters of low rank of
    them (peft). All D factors are scalars. With v frozen and one gate, the paper's D = 2, the penalty is γ²/2, which
    makes nothing sparse; and where weights are trained, their steps are too short (1e-5) for ‖v_u‖ to follow a gate. It
    is then not penalised and could grow while the gate falls, so `weight_rate` times `steps` has to stay far below 1.

    λ rises evenly to `penalty`. Training ends when the units below the tolerance have the parameters that
    solve.sparsity asks for, or after `steps`. The smallest |s_u| then go, as many as the budget asks. The scales of the
    others are folded into o and down, as |s|^p with the p from 0 to 1 that is best on one sequence in eight, which
    training does not see (though in a short text windows overlap): gates know few sequences, and the penalty pulls at
    those that stay.

    Compensation is left out unless it is asked for: it restores what o and down put out, and gates let go of outputs
    that the loss does not need (docs/d-gating-models.md).

    Departs from the paper: groups are weighed by their parameters and measured by what they began with; pretrained
    weights; Adam in place of SGD, because some tens of steps are all there is time for; λ rises until the budget is
    met, where the paper tries several.

    weights:       what is trained beside the gates: frozen | trained | lora.
    depth:         D, at least 2.
    steps:         at most; batch: sequences in each.
    learning_rate: of gates (Adam); weight_rate: of weights or adapters.
    penalty:       the last λ, in nats for all units' parameters.
    tolerance:     |s_u| at which a unit is gone.
    rank:          of adapters; seed: of the order of the sequences and of the adapters.
    """

    weights: Literal["frozen", "trained", "lora"] = "frozen"
    depth: int = 2
    steps: int = 32
    batch: int = 1
    learning_rate: float = 0.05
    weight_rate: float = 1e-5
    penalty: float = 4.0
    tolerance: float = 0.01
    rank: int = 8
    seed: int = 0
    paper: ClassVar[str] = "Differentiable Sparsity via D-Gating (2025), on a pretrained model"
    needs: ClassVar[frozenset[str]] = frozenset()
    allocation: ClassVar[str] = "global"
    compensation: ClassVar[str] = "none"
    idle: ClassVar[dict[str, tuple[str, tuple[object, ...]]]] = {
        "weight_rate": ("weights", ("frozen",)),
        "rank": ("weights", ("frozen", "trained")),
    }

    def __post_init__(self) -> None:
        for name, least in (("depth", 2), ("steps", 1), ("batch", 1), ("rank", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ParameterError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.seed >= 2**63:
            raise ParameterError(f"seed: expected less than {2**63}, got {self.seed}")
        for name in ("learning_rate", "weight_rate", "penalty"):
            if not 0 < getattr(self, name) < math.inf:
                raise ParameterError(f"{name}: expected more than 0, got {getattr(self, name):g}")
        if not 0 <= self.tolerance < 1:
            raise ParameterError(f"tolerance: expected a fraction in [0, 1), got {self.tolerance:g}")

    def strength(self, step: int) -> float:
        """λ of a step, counted from 0: rises evenly to `penalty`."""
        return self.penalty * (step + 1) / self.steps
