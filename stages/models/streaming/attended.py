"""What enters the attention of a loaded block, and the queries and keys it makes of it with the block's own weights.

Needs no linears of q and k: whatever asks one of transformers' attention functions can be seen, fused weights too.
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
from stages.models.streaming.attention import NAME, Asked
from stages.models.streaming.streamed import Finished, StreamedModel

FOUND = "secateur_found"


class Attended(NamedTuple):
    """inputs: (sequences, n, width), what the attention is called with; asked: its queries and keys."""

    inputs: Tensor
    asked: Asked


@contextmanager
def attended(model: StreamedModel, index: int) -> Iterator[Callable[[Tensor], Attended]]:
    """A function from hidden states (sequences, n, width) entering block `index`, which is loaded, to Attended.

    Raises ArchitectureError where the block's attention does not ask the function it is told to use.
    """
    attention, entered = _attention_of(model, index), list[Tensor]()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entered.append(args[0] if args else kwargs["hidden_states"])

    def ask(states: Tensor) -> Attended:
        asked: Asked = model.run_inside(index, states)
        return Attended(entered.pop(), asked)

    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with model.attending_with(NAME):
            yield ask
    finally:
        handle.remove()


def _attention_of(model: StreamedModel, index: int) -> nn.Module:
    """The module of the loaded block that calls the attention function."""
    with model.attending_with(FOUND):
        found = model.run_inside(index, torch.zeros(1, 2, model.width))
    if not isinstance(found, nn.Module):
        raise ArchitectureError(
            f"block {index} of {type(model.module('')).__name__} does not use transformers' attention functions: "
            "its attention matrix cannot be reached"
        )
    return found


def _find(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    raise Finished(module)


AttentionInterface.register(FOUND, _find)
AttentionMaskInterface.register(FOUND, eager_mask)
