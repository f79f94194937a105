"""Sliced (SliceGPT) checkpoints: their classes, registered with transformers, and their config.json.

A checkpoint carries the same classes in a file of its own, for `trust_remote_code` where this package is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.models.classes import modeling_sliced as sliced
from stages.models.classes.registration import class_values, register

CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (sliced.SlicedLlamaConfig, sliced.SlicedLlamaForCausalLM),
    "mistral": (sliced.SlicedMistralConfig, sliced.SlicedMistralForCausalLM),
    "qwen2": (sliced.SlicedQwen2Config, sliced.SlicedQwen2ForCausalLM),
    "qwen3": (sliced.SlicedQwen3Config, sliced.SlicedQwen3ForCausalLM),
}
"""Configuration and model class, by the dense model's `model_type`."""


def sliced_values(
    dense: Mapping[str, Any], head_width: int, width: int, final: int | None, tied: bool
) -> dict[str, Any]:
    """Values of config.json of a sliced checkpoint: hidden states of `width`, of `final` after the last block.

    dense: the dense model's values; final: None for the dense model's width.
    tied: whether the embeddings are still the head's weight.
    """
    return {
        **class_values(dense, CLASSES),
        "head_dim": head_width,
        "sliced_width": width,
        "final_width": final,
        "tie_word_embeddings": tied,
    }


register(CLASSES)
