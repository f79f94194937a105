"""Perplexity: the exponential of the mean negative log likelihood of the scored tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stages.errors import NotFiniteError
from stages.measuring.quality.windows import Window

LOGITS_BYTES = 256 * 2**20
"""Logits in memory at once, in float32: what a large vocabulary would otherwise fill."""


def perplexity(model: nn.Module, tokens: Tensor, windows: Sequence[Window], chunk: int) -> dict[str, Any]:
    """Perplexity of a model on a text: its `value`, the scored `tokens`, the number of `windows`.

    value = exp(-1/n Σ log p(token | the tokens before it in its window)) over the n scored tokens;
    log-softmax in float32, the sum in float64.

    model:   called with input_ids [batch, length], returns .logits [batch, length, vocabulary].
    tokens:  integer [n], the tokenised text.
    windows: inputs of one length; see `windows_of`.
    chunk:   windows in a call, at most.

    Raises NotFiniteError, naming the window, where logits are NaN or infinite.
    """
    return perplexity_of(windows, losses(model, tokens, windows, chunk))


def perplexity_of(windows: Sequence[Window], losses: Sequence[float]) -> dict[str, Any]:
    """The figures of `perplexity` from the summed negative log likelihood of each window."""
    for index, (window, loss) in enumerate(zip(windows, losses, strict=True)):
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"the model's logits in window {index} (tokens {window.start} to {window.stop - 1} of the "
                "evaluation text) are not finite: look for NaN or infinity in its weights, or set "
                "compute.dtype to float32"
            )
    scored = sum(window.scored for window in windows)
    return {"value": _exponential(sum(losses) / scored), "tokens": scored, "windows": len(windows)}


@torch.inference_mode()
def losses(model: nn.Module, tokens: Tensor, windows: Sequence[Window], chunk: int) -> list[float]:
    """The summed negative log likelihood of the scored tokens of each window; see `perplexity`."""
    return list(_losses(model, tokens, windows, chunk))


def _losses(model: nn.Module, tokens: Tensor, windows: Sequence[Window], chunk: int) -> Iterator[float]:
    """The summed negative log likelihood of each window."""
    device = next(model.parameters()).device
    length = len(windows[0].input_of(tokens))
    size = 1
    pending = list(windows)
    while pending:
        batch, pending = pending[:size], pending[size:]
        inputs = torch.stack([window.input_of(tokens) for window in batch]).to(device)
        logits = model(input_ids=inputs, use_cache=False).logits
        for window, ids, rows in zip(batch, inputs, logits, strict=True):
            yield _loss(rows[-window.scored - 1 : -1], ids[-window.scored :])
        size = max(1, min(chunk, LOGITS_BYTES // (length * logits.shape[-1] * 4)))


def _loss(logits: Tensor, targets: Tensor) -> float:
    """Σ -log softmax(logits)[targets] of one window: [n, vocabulary] and [n], as float64."""
    losses = nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    return float(losses.double().sum())


def _exponential(mean: float) -> float:
    try:
        return math.exp(mean)
    except OverflowError:
        raise NotFiniteError(
            f"the mean negative log likelihood is {mean:.3g}, whose exponential is no number: the model is broken"
        ) from None
