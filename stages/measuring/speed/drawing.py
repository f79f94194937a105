"""Draws the codes of whole images with classifier-free guidance and a key-value cache, and times it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from stages.models.imaging.sampling import Sampling, sample_codes


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


def draw_images(model: Any, drawing: Drawing) -> float:
    """Seconds until all codes of the images are in memory; the image tokenizer, which is not pruned, decodes none.

    All codes may be drawn, at temperature 1, by the same random numbers every time.
    """
    labels = torch.arange(drawing.batch) % drawing.classes
    begin = time.perf_counter()
    sample_codes(model, labels, Sampling(drawing.guidance_scale), seed=0)
    return time.perf_counter() - begin
