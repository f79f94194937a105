"""Queries and keys that the attention of a loaded block computes with its own weights, and the hidden states it reads.

Unlike AttentionProbe it needs no separate linears of q and k: any block that calls one of transformers' attention
functions can be observed, with fused q, k and v as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from stages.errors import ArchitectureError
from stages.models.streaming.attention import RETURN_QUERIES_AND_KEYS, QueriesAndKeys
from stages.models.streaming.streamed import EndForward, StreamedModel

RETURN_MODULE = "secateur_return_module"
"""Name of an attention function that ends the forward with the module that called it."""


class ObservedAttention(NamedTuple):
    """inputs: (sequences, n, width) hidden states that the attention reads; queries_and_keys: made of them."""

    inputs: Tensor
    queries_and_keys: QueriesAndKeys


@contextmanager
def observed_attention(model: StreamedModel, index: int) -> Iterator[Callable[[Tensor], ObservedAttention]]:
    """A function from hidden states (sequences, n, width) entering the loaded block `index` to its ObservedAttention.

    Raises ArchitectureError where the block's attention does not call transformers' attention functions.
    """
    attention, entered = _attention_of(model, index), list[Tensor]()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered.append(args[0] if args else kwargs["hidden_states"])

    def observe(states: Tensor) -> ObservedAttention:
        queries_and_keys: QueriesAndKeys = model.run_inside(index, states)
        return ObservedAttention(entered.pop(), queries_and_keys)

    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with model.attending_with(RETURN_QUERIES_AND_KEYS):
            yield observe
    finally:
        handle.remove()


def _attention_of(model: StreamedModel, index: int) -> nn.Module:
    """The module of the loaded block that calls the attention function."""
    with model.attending_with(RETURN_MODULE):
        caller = model.run_inside(index, torch.zeros(1, 2, model.width))
    if not isinstance(caller, nn.Module):
        raise ArchitectureError(
            f"block {index} of {type(model.module('')).__name__} does not use transformers' attention functions: "
            "its attention matrix cannot be reached"
        )
    return caller


def _return_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    raise EndForward(module)


AttentionInterface.register(RETURN_MODULE, _return_module)
AttentionMaskInterface.register(RETURN_MODULE, eager_mask)
