"""Models built without memory for their parameters (meta device), and ways to lend them tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from stages.errors import ArtifactError
from stages.models.classes import hetero, llamagen  # noqa: F401 (register the classes of models and layouts that transformers lacks)


def build_skeleton(folder: Path, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """The causal language model that config.json describes, parameters on meta, buffers real."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
    return skeleton_of(config, dtype, trust_remote_code)


def skeleton_of(config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    """The causal language model of a configuration, parameters on meta, buffers real."""
    with _parameters_on_meta(), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    return model.eval().requires_grad_(False)


def lend(module: nn.Module, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> None:
    """Give `module` these parameters and buffers, by name, moved to `device` and cast to `dtype`.

    Raises ArtifactError if a name or a shape does not fit.
    """
    moved = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
    try:
        _, unexpected = module.load_state_dict(moved, assign=True, strict=False)
    except RuntimeError as error:
        raise ArtifactError(f"the checkpoint does not fit its config.json: {error}") from None
    if unexpected:
        raise ArtifactError(f"the checkpoint does not fit its config.json: unexpected {', '.join(unexpected)}")


def take_back(module: nn.Module) -> None:
    """Free the parameters of `module` by moving them to the meta device; its buffers stay."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)


@contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Context in which the module has another forward; its hooks and attributes stay."""
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Context in which every new module's parameters are put on the meta device; buffers stay real."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
