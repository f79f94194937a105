"""Hetero checkpoints, whose blocks have different widths: their classes, registered with transformers.

A checkpoint carries the same classes in a file of its own, for `trust_remote_code` where this package is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.models.classes import llamagen
from stages.models.classes.modeling_hetero import (
    HeteroLlamaConfig,
    HeteroLlamaForCausalLM,
    HeteroMistralConfig,
    HeteroMistralForCausalLM,
    HeteroQwen2Config,
    HeteroQwen2ForCausalLM,
    HeteroQwen3Config,
    HeteroQwen3ForCausalLM,
)
from stages.models.classes.registration import class_values, register

OWN: dict[str, tuple[Any, Any]] = {
    "llama": (HeteroLlamaConfig, HeteroLlamaForCausalLM),
    "mistral": (HeteroMistralConfig, HeteroMistralForCausalLM),
    "qwen2": (HeteroQwen2Config, HeteroQwen2ForCausalLM),
    "qwen3": (HeteroQwen3Config, HeteroQwen3ForCausalLM),
}
CLASSES = OWN | llamagen.CLASSES
"""Configuration and model class, by the dense model's `model_type`; LlamaGen's own class has blocks of any widths."""


def lost_units(config: Any) -> bool:
    """Whether a model with this configuration has lost heads or channels."""
    return getattr(config, "block_channels", None) is not None


def hetero_values(
    dense: Mapping[str, Any], key_value_heads: Sequence[int], channels: Sequence[int], head_width: int, biases: set[str]
) -> dict[str, Any]:
    """Values of config.json of a hetero checkpoint: each block's numbers of key-value heads and channels.

    dense: the dense model's values; biases: the linears (o_proj, down_proj) that need a bias the dense model lacks.
    """
    return {
        **class_values(dense, CLASSES),
        "head_dim": head_width,
        "block_key_value_heads": list(key_value_heads),
        "block_channels": list(channels),
        "output_biases": sorted(biases),
    }


register(OWN)
