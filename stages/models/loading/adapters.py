"""Low-rank adapters of linears (LoRA) by peft, which is imported only here and only when adapters are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stages.errors import ParameterError
from stages.models.structure import Linear


def check_adapters() -> None:
    """Raise ParameterError where peft is not installed."""
    try:
        import peft  # noqa: F401
    except ImportError:
        raise ParameterError(
            "methods.d_gating.weights: lora needs peft, which is not installed here: pip install 'secateur[lora]', or "
            "use frozen or trained"
        ) from None


def add_adapters(model: nn.Module, linears: Sequence[Linear], rank: int, seed: int) -> list[nn.Parameter]:
    """Replace each W by W + BA, B (d_out, rank) zero at first, A (rank, d_in) drawn from `seed`; returns all A and B.

    The linears keep their names. The global generator of random numbers is left as it was.
    """
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules=[linear.name for linear in linears],
        fan_in_fan_out=any(linear.transposed for linear in linears),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    return [parameter for name, parameter in model.named_parameters() if ".lora_" in name]


@torch.no_grad()
def merged(model: nn.Module, linear: Linear) -> Tensor:
    """Merged weight W + BA, as the checkpoint stores W; of a linear without an adapter, its weight."""
    module: Any = model.get_submodule(linear.name)
    if not hasattr(module, "get_delta_weight"):
        return model.get_parameter(linear.tensor).detach()
    base: Tensor = module.get_base_layer().weight.detach()
    return base + module.get_delta_weight("default").to(base)
