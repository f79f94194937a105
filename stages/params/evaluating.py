"""evaluate: perplexity, lm-eval tasks, images, attention matrices and speed of the dense and the pruned model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from stages.params.base import Positive, Section, only_defaults
from stages.params.faults import fault_at
from stages.params.ranges import Numbers
from stages.params.sampling import SamplingSettings


class Perplexity(Section):
    """evaluate.perplexity: the protocol of perplexity on the evaluation text."""

    window: Annotated[int, Field(ge=2)] = 512
    """Tokens of a window."""
    stride: Positive = 512
    """Tokens from the start of a window to the next; those that overlap are context and are not scored again."""
    bos: bool = False
    """Whether every window begins with the BOS token."""
    windows: Positive | None = None
    """Number of windows; None: all of the text."""

    @model_validator(mode="after")
    def _covers_the_text(self) -> Perplexity:
        if self.stride > self.window:
            raise ValueError(f"stride {self.stride} skips text: expected at most window ({self.window})")
        return self


class Tasks(Section):
    """evaluate.tasks: the tasks that lm-eval runs."""

    names: tuple[str, ...] = ()
    """Official task names, or names of YAML tasks in `include`; none: no tasks are run."""
    include: Path | None = Path("tasks")
    """Folder of YAML tasks."""
    defaults: bool = False
    """Whether lm-eval's own tasks are indexed too (official names need it; takes 16 s)."""
    limit: Positive | None = None
    """Documents of each task; None: all."""
    fewshot: Annotated[int, Field(ge=0)] | None = None
    """Examples before each document; None: each task's own number."""
    batch_size: Positive = 8
    """Requests in a forward."""
    max_length: Positive | None = None
    """Tokens of the longest input, longer prompts are cut from the left; None: as many as the model was made for."""
    seed: int = 0
    """Of lm-eval's draw of examples."""


class Images(SamplingSettings):
    """evaluate.images: samples of an image model (LlamaGen), and what they are compared by."""

    count: Annotated[int, Field(ge=0)] = 0
    """Samples; 0: none are drawn."""
    classes: Numbers | None = None
    """Classes that the samples are of, in turns; None: all of the model's."""
    seed: int = 0
    """Of the draw; the dense and the pruned model draw with the same random numbers."""
    batch: Positive = 16
    """Images sampled together: sets peak memory, and the draw depends on it."""
    size: Positive | None = None
    """Pixels of a side that samples are resized to (bicubic) before their features; None: as they are decoded."""
    features: Path | None = None
    """Folder of a transformers image classifier, or a file of Inception weights; None: no figures, samples only."""
    reference: Path | None = None
    """Folder of images, or ADM's .npz, that FID, sFID, precision and recall compare with; None: they are left out."""
    shown: Annotated[int, Field(ge=0)] = 16
    """Samples in the report's picture, the first ones."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Images:
        if self.count == 0:
            only_defaults(self, type(self).model_fields, "evaluate.images.count is 0, so no image is drawn", "", "")
        if self.features is None:
            why = "evaluate.images.features is null, so no features are compared"
            only_defaults(self, ["reference", "size"], why, "; name a feature network, or take it out", "")
        if 0 < self.count < self.shown:
            raise fault_at("shown", f"expected at most count ({self.count}), got {self.shown}")
        return self


class Attention(Section):
    """evaluate.attention: the sequences on which the attention matrices of both models are compared."""

    sequences: Annotated[int, Field(ge=0)] = 8
    """Of each text, at most as many as calibration has; 0: they are not compared."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of each, at most as many as calibration's have."""


class Speed(Section):
    """evaluate.speed: generation and prefill with which speed and memory of both models are compared."""

    prompt: Positive = 64
    """Tokens of a prompt."""
    generate: Annotated[int, Field(ge=2)] = 64
    """New tokens, the first of which the prompt's own forward gives."""
    batch: Positive = 1
    """Prompts in a forward."""
    repeats: Annotated[int, Field(ge=0)] = 5
    """Rounds that count, in each of which both models take a turn; 0: they are not compared."""
    warmup: Annotated[int, Field(ge=0)] = 1
    """Rounds before them."""
    always: bool = False
    """Whether a checkpoint is measured whose sparsity is nothing but zeros, which no dense kernel uses."""


class Evaluate(Section):
    """evaluate: what the dense and the pruned model are measured by."""

    perplexity: Perplexity = Perplexity()
    tasks: Tasks = Tasks()
    images: Images = Images()
    attention: Attention = Attention()
    speed: Speed = Speed()
