"""Samples codes of images of given classes from an image model, by random numbers of a seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from stages.errors import NotFiniteError
from stages.models.classes.modeling_llamagen import LlamaGenForImageGeneration


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn: see `LlamaGenForImageGeneration.generate`.

    guidance_scale: s of u + s (c - u); 1 runs the conditional half alone. guided_codes: None guides all.
    """

    guidance_scale: float = 1.75
    guided_codes: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, settings: Any) -> Sampling:
        """The fields of the same names of a section of params.yaml."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


def sample_codes(model: LlamaGenForImageGeneration, labels: Tensor, sampling: Sampling, seed: int) -> Tensor:
    """Codes, int64 (batch, codes) on the CPU, of images of classes `labels` (batch,).

    The same seed, labels and sampling give the same codes on one machine; the caller's random numbers stay as they are.
    Raises NotFiniteError where the model's logits are NaN or infinite.
    """
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            codes: Tensor = model.generate(class_labels=labels, **asdict(sampling))
        except RuntimeError as error:
            if "probability tensor" in str(error):
                raise NotFiniteError(
                    "the model's logits of image codes are not finite: look for NaN or infinity in its weights, or set "
                    "compute.dtype (for fetch fetch.model.dtype) to float32"
                ) from error
            raise
    return codes.cpu()


def is_image_model(model: Any) -> bool:
    """Whether a model draws images (LlamaGen) rather than text."""
    return isinstance(model, LlamaGenForImageGeneration)
