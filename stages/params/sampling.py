"""How codes of images are drawn from an image model: guidance, temperature, top-k and top-p of params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from stages.params.base import Positive, Section
from stages.params.faults import fault_at


class SamplingSettings(Section):
    """Settings of every section that draws images from a model."""

    guidance_scale: Annotated[float, Field(ge=1)] = 1.75
    """s of the guided logits u + s (c - u), of class c and of no class u; 1: the class alone, at half the cost."""
    guided_codes: Positive | None = None
    """Codes of an image that are guided, the first ones; None: all."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Logits are divided by it."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Most probable codes that can be drawn; 0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Smallest probability that the codes that can be drawn have together; 1: all codes."""

    @model_validator(mode="after")
    def _guidance_has_an_effect(self) -> SamplingSettings:
        if self.guidance_scale == 1 and self.guided_codes is not None:
            message = f"guidance_scale 1 guides no code, got {self.guided_codes}: set it to null, or raise the scale"
            raise fault_at("guided_codes", message)
        return self
