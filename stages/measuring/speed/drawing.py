"""Draws the codes of whole images with classifier-free guidance and a key-value cache, and times it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from stages.models.loading.compute import synchronize


@dataclass(frozen=True)
class Drawing:
    """Images that an image model draws together.

    batch: images, of the first classes in turns; classes, codes: of the model, see `ImageFacts`.
    guidance_scale: of classifier-free guidance; above 1 every image is computed with its class and with no class.
    """

    batch: int
    classes: int
    codes: int
    guidance_scale: float

    @property
    def halves(self) -> int:
        """Sequences that an image is computed from."""
        return 1 if self.guidance_scale == 1 else 2


@torch.inference_mode()
def draw_images(model: Any, drawing: Drawing) -> float:
    """Seconds that all codes of the images take; the image tokenizer, which is not pruned, decodes none.

    All codes may be drawn, at temperature 1. The same random numbers every time; torch's own stay as they were.
    """
    labels = torch.arange(drawing.batch) % drawing.classes
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        synchronize(model.device)
        begin = time.perf_counter()
        model.generate(
            class_labels=labels,
            guidance_scale=drawing.guidance_scale,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
        )
        synchronize(model.device)
        return time.perf_counter() - begin
