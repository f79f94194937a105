"""A whole causal model in memory whose heads and channels are gated where o and down read them, for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.artifacts.manifest import read_manifest, trusts_code
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
    """A gated model and its trainable parameters.

    units:    heads and channels of blocks that are gated; families: their gates, in the same order.
    linears:  those whose weights are trained, whole or by adapters; weights: the parameters that train them.
    """

    net: nn.Module
    units: Sequence[Units]
    families: Sequence[ScaledUnits]
    linears: Sequence[Linear]
    weights: Sequence[nn.Parameter]

    @property
    def trainable(self) -> list[nn.Parameter]:
        """All parameters that are trained: gates, then weights."""
        return [*(family.gates.factors for family in self.families), *self.weights]

    def loss(self, tokens: Tensor) -> Tensor:
        """See `next_token_loss`."""
        return next_token_loss(self.net, tokens)

    def penalty(self) -> Tensor:
        """Gating penalty of all units at λ = 1, a scalar; see ScaledUnits.penalty."""
        return torch.stack([family.penalty() for family in self.families]).sum()

    def parameters_at_zero(self, tolerance: float) -> int:
        """Number of parameters of units whose size |s| is at most `tolerance`."""
        counts = [int((family.sizes() <= tolerance).sum()) for family in self.families]
        return sum(count * units.parameters for count, units in zip(counts, self.units, strict=True))

    def weight(self, linear: Linear) -> Tensor:
        """Trained weight of a linear, adapters merged, scales left out; oriented as the checkpoint stores it."""
        return merged(self.net, linear)


def gated_model(model: StreamedModel, settings: DGating, units: Sequence[Units], everything: int) -> GatedModel:
    """Load the whole model and gate `units`. everything: parameters of all units of the model, which weigh the penalty.

    Trained weights are float32 at least, for steps of a hundred-thousandth of a weight; so is the whole of a float16
    model, in which gradients vanish.
    """
    frozen, dtype = settings.weights == "frozen", model.dtype
    if not frozen or dtype == torch.float16:
        dtype = torch.promote_types(dtype, torch.float32)
    net = _load_whole(model, dtype)
    linears = [] if frozen else [linear for index in range(model.blocks) for linear in model.linears(index)]
    weights = list[nn.Parameter]()
    if settings.weights == "lora":
        weights = add_adapters(net, linears, settings.rank, settings.seed)
    elif settings.weights == "trained":
        weights = [net.get_parameter(linear.tensor) for linear in linears]
        for weight in weights:
            weight.requires_grad_()
    families = [_gate_units(net, part, settings, everything) for part in units]
    return GatedModel(net, units, families, linears, weights)


def model_with_gates(
    model: StreamedModel, trained: TrainedGates, kinds: Sequence[Units]
) -> tuple[nn.Module, list[Tensor]]:
    """The whole model with trained weights, and a tensor (units,) for each of `kinds` that scales its units.

    Writing to the tensors changes what the model computes; they are all ones at first.
    """
    net = _load_whole(model, model.dtype)
    for linear in (linear for index in range(model.blocks) for linear in model.linears(index)):
        weight = linear.weight(trained.weight(linear, (), model))
        net.get_parameter(linear.tensor).data.copy_(weight)
    gates = [Gates(2, units.count, net.get_parameter(units.sink.tensor)) for units in kinds]
    for units, gate in zip(kinds, gates, strict=True):
        scaled_inputs(net.get_submodule(units.sink.name), gate)
    return net, [gate.factors.data[0] for gate in gates]


def next_token_loss(net: nn.Module, tokens: Tensor) -> Tensor:
    """Language-model loss, nats a token: mean of -log p(token | those before it). tokens: ids (sequences, length)."""
    logits = net(input_ids=tokens, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def _load_whole(model: StreamedModel, dtype: torch.dtype) -> nn.Module:
    """All of data/model in memory, on the streamed model's device."""
    trust = trusts_code(read_manifest(MODEL))
    return load_model(MODEL, str(dtype).removeprefix("torch."), str(model.device), trust)


def _gate_units(net: nn.Module, units: Units, settings: DGating, everything: int) -> ScaledUnits:
    """Gate the inputs of the linear that reads the units; raises ArchitectureError where they are interleaved."""
    if not torch.equal(units.columns.flatten(), torch.arange(units.columns.numel())):
        raise ArchitectureError(
            f"block {units.block}: the inputs of {units.sink.name} are not those of unit after unit"
        )
    sink = net.get_submodule(units.sink.name)
    gates = Gates(settings.depth + 1, units.count, next(sink.parameters()))
    scaled_inputs(sink, gates)
    return ScaledUnits(gates, units.parameters / everything)
