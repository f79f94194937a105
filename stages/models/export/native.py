"""Native checkpoints: configurations of transformers' own classes for blocks that all have the same reduced widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from transformers import CONFIG_MAPPING, PreTrainedConfig

from stages.errors import ArchitectureError, reason_of
from stages.models.loading.names import stored_names
from stages.models.loading.skeleton import skeleton_of

CHANNELS = ("intermediate_size", "ffn_dim", "n_inner")
"""What configurations call the width of the MLP."""

LLAMA_LIKE = ("llama", "mistral", "qwen2")
"""Types whose blocks compute the same, wherever neither has biases or a window that the other lacks."""

OWN = {
    "model_type", "architectures", "auto_map", "layer_types", "sliding_window", "use_sliding_window",
    "max_window_layers", "attention_bias", "mlp_bias",
}  # fmt: skip


@dataclass(frozen=True)
class Widths:
    """Widths that all blocks share: heads, key-value heads, width of a head, channels of the MLP."""

    heads: int
    key_value_heads: int
    head_width: int
    channels: int


@dataclass(frozen=True)
class Fit:
    """A model class that the tensors of a checkpoint fit.

    parameters: number of its parameters.
    added: shapes of biases that it has and the checkpoint lacks, by their stored names.
    """

    parameters: int
    added: dict[str, tuple[int, ...]]


def native_values(
    values: Mapping[str, Any], dense: PreTrainedConfig, old: Widths, new: Widths, biases: set[str]
) -> Iterator[dict[str, Any]]:
    """Candidate values of config.json, the dense model's own class first; `fit` checks which of them fit.

    values: the dense model's config.json, `dense` its configuration; biases: roles (attention.o, mlp.down) that need
    a bias the dense model lacks.
    """
    changed = dict[str, Any]()
    if new.heads != old.heads:
        changed |= {"num_attention_heads": new.heads, "head_dim": new.head_width}
        if hasattr(dense, "num_key_value_heads"):
            changed["num_key_value_heads"] = new.key_value_heads
    if new.channels != old.channels:
        changed |= {name: new.channels for name in CHANNELS if hasattr(dense, name)}
    changed = {dense.attribute_map.get(name, name): value for name, value in changed.items()}
    needed = {"attention_bias": "attention.o", "mlp_bias": "mlp.down"}
    changed |= {name: True for name, role in needed.items() if role in biases}
    yield {**values, **changed}
    if dense.model_type in LLAMA_LIKE and getattr(dense, "sliding_window", None) is None:
        yield from _like_llama({key: value for key, value in dense.to_dict().items() if key not in OWN}, dense, new)


def _like_llama(values: dict[str, Any], dense: PreTrainedConfig, new: Widths) -> Iterator[dict[str, Any]]:
    """Mistral without a window and Seed-OSS with every choice of biases: neither needs width = heads * head_dim."""
    shape = {
        "num_attention_heads": new.heads,
        "num_key_value_heads": new.key_value_heads,
        "head_dim": new.head_width,
        "intermediate_size": new.channels,
    }
    yield {
        **values, **shape, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None,
    }  # fmt: skip
    seed = {"model_type": "seed_oss", "architectures": ["SeedOssForCausalLM"], "residual_dropout": 0.0}
    names = ("attention_bias", "attention_out_bias", "mlp_bias")
    for biases in product((False, True), repeat=3):
        yield {**values, **shape, **seed, **dict(zip(names, biases, strict=True))}


def fit(
    values: Mapping[str, Any], dense: PreTrainedConfig, shapes: Mapping[str, tuple[int, ...]], trust_remote_code: bool
) -> Fit:
    """Check that tensors fit the model of config.json's `values`, built without memory.

    shapes: of the tensors, by stored name. Raises ArchitectureError with the reason where they do not.
    """
    kind = type(dense) if values["model_type"] == dense.model_type else CONFIG_MAPPING[values["model_type"]]
    try:
        model = skeleton_of(kind.from_dict(dict(values)), torch.float32, trust_remote_code)
    except Exception as error:  # transformers and its dependencies check configurations each in its own way
        raise ArchitectureError(f"{kind.__name__} refuses it: {reason_of(error, whole=True)}") from error
    model.tie_weights()
    name, state = type(model).__name__, model.state_dict(keep_vars=True)
    stored = stored_names(model, shapes)
    for parameter, tensor in stored.items():
        if tuple(state[parameter].shape) != shapes[tensor]:
            raise ArchitectureError(f"{name} wants {tensor} as {tuple(state[parameter].shape)}, not {shapes[tensor]}")
    unknown = sorted(tensor for tensor in set(shapes) - set(stored.values()) if tensor.endswith(".bias"))
    if unknown:
        raise ArchitectureError(f"{name} has no {unknown[0]}")
    held = {id(state[parameter]) for parameter in stored}
    added = dict[str, tuple[int, ...]]()
    for parameter, tensor in model.named_parameters():
        if id(tensor) not in held:
            weight = stored.get(f"{parameter.removesuffix('.bias')}.weight")
            if not parameter.endswith(".bias") or weight is None:
                raise ArchitectureError(f"{name} wants {parameter}, which the checkpoint lacks")
            added[f"{weight.removesuffix('.weight')}.bias"] = tuple(tensor.shape)
    return Fit(sum(parameter.numel() for parameter in model.parameters()), added)
