"""A whole causal model in memory, its heads and channels gated where o and down read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.artifacts.manifest import read_manifest
from stages.artifacts.places import MODEL
from stages.errors import ArchitectureError
from stages.gating.gates import Gates
from stages.gating.inputs import ScaledUnits, scaled_inputs
from stages.methods.gates.d_gating import DGating
from stages.models.loading.adapters import add_adapters, merged
from stages.models.loading.load import load_model
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Units
from stages.models.structure import Linear
from stages.solving.gates.result import TrainedGates


@dataclass(frozen=True, eq=False)
class GatedModel:
    """The model, and what of it is trained.

    units: those that are gated, with their gates in the same order; linears: those whose weights are trained, in
    adapters or whole; weights: their parameters.
    """

    net: nn.Module
    units: Sequence[Units]
    families: Sequence[ScaledUnits]
    linears: Sequence[Linear]
    weights: Sequence[nn.Parameter]

    @property
    def trained(self) -> list[nn.Parameter]:
        """Gates, then weights."""
        return [*(family.gates.factors for family in self.families), *self.weights]

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean over the next tokens of -log p(token | those before it), of ids (sequences, length)."""
        return next_token_loss(self.net, tokens)

    def penalty(self) -> Tensor:
        """The penalty of all gates at λ = 1."""
        return torch.stack([family.penalty() for family in self.families]).sum()

    def gone(self, tolerance: float) -> int:
        """Parameters of units whose size is at most `tolerance`."""
        counts = [int((family.sizes() <= tolerance).sum()) for family in self.families]
        return sum(count * one.parameters for count, one in zip(counts, self.units, strict=True))

    def weight(self, linear: Linear) -> Tensor:
        """The trained weight of a linear, adapters merged, scales left out; as the checkpoint stores it."""
        return merged(self.net, linear)


def gated_model(model: StreamedModel, settings: DGating, units: Sequence[Units], everything: int) -> GatedModel:
    """Load the model whole and gate `units`; everything: parameters of all units of the model.

    Where weights are trained they are so in float32 at least, for steps of a hundred-thousandth of a weight. So is
    a float16 model, in which gradients vanish.
    """
    frozen, narrow = settings.weights == "frozen", model.dtype
    keeps = frozen and narrow != torch.float16
    net = _whole(model, narrow if keeps else torch.promote_types(narrow, torch.float32))
    linears = [] if frozen else [linear for index in range(model.blocks) for linear in model.linears(index)]
    weights = list[nn.Parameter]()
    if settings.weights == "lora":
        weights = add_adapters(net, linears, settings.rank, settings.seed)
    elif settings.weights == "trained":
        weights = [net.get_parameter(linear.tensor) for linear in linears]
        for weight in weights:
            weight.requires_grad_()
    families = [_gated(net, one, settings, everything) for one in units]
    return GatedModel(net, units, families, linears, weights)


def model_with_gates(
    model: StreamedModel, trained: TrainedGates, kinds: Sequence[Units]
) -> tuple[nn.Module, list[Tensor]]:
    """The whole model with trained weights, and a tensor (units,) for each of `kinds` that scales its units."""
    net = _whole(model, model.dtype)
    for linear in (linear for index in range(model.blocks) for linear in model.linears(index)):
        weight = linear.weight(trained.weight(linear, (), model))
        net.get_parameter(linear.tensor).data.copy_(weight)
    gates = [Gates(2, one.count, net.get_parameter(one.sink.tensor)) for one in kinds]
    for one, gate in zip(kinds, gates, strict=True):
        scaled_inputs(net.get_submodule(one.sink.name), gate)
    return net, [gate.factors.data[0] for gate in gates]


def next_token_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """Mean over the next tokens of -log p(token | those before it), of ids (sequences, length)."""
    logits = net(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def _whole(model: StreamedModel, dtype: torch.dtype) -> nn.Module:
    trust = bool(read_manifest(MODEL).get("source", {}).get("trust_remote_code", False))
    return load_model(MODEL, str(dtype).removeprefix("torch."), str(model.device), trust)


def _gated(net: nn.Module, units: Units, settings: DGating, everything: int) -> ScaledUnits:
    if not torch.equal(units.columns.flatten(), torch.arange(units.columns.numel())):
        raise ArchitectureError(
            f"block {units.block}: the inputs of {units.sink.name} are not those of unit after unit"
        )
    sink = net.get_submodule(units.sink.name)
    gates = Gates(settings.depth + 1, units.count, next(sink.parameters()))
    scaled_inputs(sink, gates)
    return ScaledUnits(gates, units.parameters / everything)
