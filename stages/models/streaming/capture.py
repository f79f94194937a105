"""Hooks on a block's linears while the model runs: which share an input, what they read, where they write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from stages.models.streaming.streamed import EndForward, StreamedModel
from stages.models.structure import Linear

PROBE_TOKENS = 4
"""Tokens of the forwards that determine how a block is wired."""


def input_groups(model: StreamedModel, index: int, states: Tensor) -> list[tuple[Linear, ...]]:
    """Groups of linears of the loaded block `index` that share an input, in the order they are called.

    Determined by running the block on the first tokens of `states` (sequences, length, width): two linears share an
    input when they are passed the same tensor (q, k and v; gate and up; in a parallel block q, k, v and up).
    """
    seen: list[tuple[Tensor, list[Linear]]] = []
    with ExitStack() as stack:
        for linear in model.linears(index):

            def note(module: nn.Module, args: tuple[Any, ...], linear: Linear = linear) -> None:
                for tensor, sharing in seen:
                    if _same(tensor, args[0]):
                        sharing.append(linear)
                        return
                seen.append((args[0], [linear]))

            stack.callback(model.module(linear.name).register_forward_pre_hook(note).remove)
        model.run(index, states[:1, :PROBE_TOKENS])
    return [tuple(sharing) for _, sharing in seen]


@torch.no_grad()
def writes_to_residual(model: StreamedModel, index: int, groups: Sequence[tuple[Linear, ...]]) -> list[bool]:
    """Detects linears whose output is added to the residual stream: for each group, whether it is one such linear.

    So are o and down where no norm comes after them. Determined by running the block on zeros with the outputs of all
    candidates replaced: if one outputs δ and the others 0, the block's output must change by δ.
    """
    candidates = [
        linears[0] if len(linears) == 1 and linears[0].shape[0] == model.width else None for linears in groups
    ]
    delta = torch.linspace(-1, 1, model.width, device=model.device, dtype=model.dtype)
    silent = _with_outputs(model, index, {linear: 0 * delta for linear in candidates if linear})
    added = []
    for linear in candidates:
        outputs = {other: delta if other is linear else 0 * delta for other in candidates if other}
        change = None if linear is None else _with_outputs(model, index, outputs) - silent
        added.append(change is not None and bool(torch.allclose(change, delta.expand_as(change), atol=0.02)))
    return added


def _with_outputs(model: StreamedModel, index: int, outputs: Mapping[Linear, Tensor]) -> Tensor:
    """The block's output for zeros, where each of these linears outputs a constant (d_out,) on every token."""
    with ExitStack() as stack:
        for linear, constant in outputs.items():

            def replace(module: nn.Module, args: Any, output: Tensor, constant: Tensor = constant) -> Tensor:
                return constant.expand_as(output)

            stack.callback(model.module(linear.name).register_forward_hook(replace).remove)
        return model.run(index, torch.zeros(1, PROBE_TOKENS, model.width))


@torch.no_grad()
def feed_inputs(
    model: StreamedModel,
    index: int,
    chunks: Iterable[Tensor],
    groups: Sequence[tuple[Linear, ...]],
    take: Callable[[int, Tensor], None],
) -> None:
    """Run the loaded block `index` on every chunk and call `take(group, input)` with the input of each group.

    chunks: hidden states (sequences, length, width); groups: see `input_groups`. The forward of a chunk ends at the
    last group, since that linear's output is not needed.
    """
    last = len(groups) - 1
    with ExitStack() as stack:
        for group, linears in enumerate(groups):

            def enter(module: nn.Module, args: tuple[Any, ...], group: int = group) -> None:
                take(group, args[0])
                if group == last:
                    raise EndForward

            stack.callback(model.module(linears[0].name).register_forward_pre_hook(enter).remove)
        for states in chunks:
            model.run_inside(index, states)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
