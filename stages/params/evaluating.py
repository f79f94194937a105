"""evaluate: what the dense and the pruned model are measured by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from stages.params.base import Positive, Section


class Perplexity(Section):
    """A protocol: windows of `window` tokens, `stride` apart; None uses all windows of the text."""

    window: Annotated[int, Field(ge=2)] = 512
    stride: Positive = 512
    bos: bool = False
    windows: Positive | None = None

    @model_validator(mode="after")
    def _covers_the_text(self) -> Perplexity:
        if self.stride > self.window:
            raise ValueError(f"stride {self.stride} skips text: expected at most window ({self.window})")
        return self


class Tasks(Section):
    """What lm-eval runs: official task names, or the names of YAML tasks in `include`."""

    names: tuple[str, ...] = ()
    include: Path | None = Path("tasks")
    defaults: bool = False
    """Whether lm-eval's own tasks are indexed too (official names need it; takes 16 s)."""
    limit: Positive | None = None
    fewshot: Annotated[int, Field(ge=0)] | None = None
    """Examples before each document; None: each task's own number."""
    batch_size: Positive = 8
    max_length: Positive | None = None
    """Tokens of the longest input, longer prompts are cut from the left; None: as many as the model was made for."""
    seed: int = 0


class Attention(Section):
    """On what the attention matrices of the pruned model are compared with the dense model's."""

    sequences: Annotated[int, Field(ge=0)] = 8
    """Of each text, at most as many as calibration has; 0: they are not compared."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of each, at most as many as calibration's have."""


class Speed(Section):
    """How the pruned model's speed and memory are compared with the dense model's."""

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
    """Whether a model with nothing but zeros is measured too."""


class Evaluate(Section):
    """What the dense and the pruned model are measured by."""

    perplexity: Perplexity = Perplexity()
    tasks: Tasks = Tasks()
    attention: Attention = Attention()
    speed: Speed = Speed()
