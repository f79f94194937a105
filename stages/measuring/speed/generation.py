"""Greedy generation with a key-value cache, its two phases timed apart."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stages.errors import ArchitectureError
from stages.measuring.speed.size import last_logits
from stages.models.loading.compute import synchronize


@dataclass(frozen=True)
class Generated:
    """New tokens (batch, count) and the seconds that the phases took.

    prefill: the prompt in one forward, which gives the first new token;
    decode:  the count - 1 others, a forward each.
    """

    tokens: Tensor
    prefill: float
    decode: float


@torch.inference_mode()
def generate(model: Any, prompt: Tensor, count: int) -> Generated:
    """The `count` likeliest tokens after `prompt` (batch, T), one at a time; an end-of-text token ends nothing.

    Raises ArchitectureError for a model that keeps no keys and values.
    """
    prompt = prompt.to(model.device)
    synchronize(model.device)
    begin = time.perf_counter()
    answer = model(input_ids=prompt, use_cache=True, **last_logits(model))
    tokens = [_likeliest(answer.logits)]
    synchronize(model.device)
    between = time.perf_counter()
    if getattr(answer, "past_key_values", None) is None:
        raise ArchitectureError(
            f"{type(model).__name__} gives no key-value cache (past_key_values), without which generation is not "
            "measured: set evaluate.speed.repeats to 0"
        )
    while len(tokens) < count:
        answer = model(input_ids=tokens[-1], past_key_values=answer.past_key_values, use_cache=True)
        tokens.append(_likeliest(answer.logits))
    synchronize(model.device)
    return Generated(torch.cat(tokens, 1).cpu(), between - begin, time.perf_counter() - between)


def _likeliest(logits: Tensor) -> Tensor:
    """(batch, 1) ids from logits (batch, any number, vocabulary), of the last position."""
    return logits[:, -1:].argmax(-1)
