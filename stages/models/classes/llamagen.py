"""LlamaGen (image generation): its classes, registered with transformers; dense and pruned models have the same."""

from __future__ import annotations

from typing import Any

from stages.models.classes.modeling_llamagen import LlamaGenConfig, LlamaGenForImageGeneration
from stages.models.classes.registration import register

CLASSES: dict[str, tuple[Any, Any]] = {"llamagen": (LlamaGenConfig, LlamaGenForImageGeneration)}
"""Configuration and model class, by `model_type`."""


def image_class(model_type: str) -> type | None:
    """The class of ours that loads an image model of this type; None: it is a model of text."""
    return CLASSES[model_type][1] if model_type in CLASSES else None


register(CLASSES)
