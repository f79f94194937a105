"""See what enters the linears of a block while the real model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from stages.models.streamed import Finished, StreamedModel
from stages.models.structure import Linear

PROBE_TOKENS = 4


def input_groups(model: StreamedModel, index: int, states: Tensor) -> list[tuple[Linear, ...]]:
    """Linears of the loaded block `index` that share an input, groups in the order they are called.

    Found by running the block on the first tokens of `states`: two linears share an input when they
    are handed the same tensor (q, k and v; gate and up; in a parallel block q, k, v and up).
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
def feed_inputs(
    model: StreamedModel,
    index: int,
    chunks: Iterable[Tensor],
    groups: Sequence[tuple[Linear, ...]],
    take: Callable[[int, Tensor], None],
) -> None:
    """Run the loaded block `index` on every chunk and give each group's input to `take(group, input)`.

    The forward of a chunk ends at the last group: what that linear would compute is not needed.
    """
    last = len(groups) - 1
    with ExitStack() as stack:
        for group, linears in enumerate(groups):

            def enter(module: nn.Module, args: tuple[Any, ...], group: int = group) -> None:
                take(group, args[0])
                if group == last:
                    raise Finished

            stack.callback(model.module(linears[0].name).register_forward_pre_hook(enter).remove)
        for states in chunks:
            model.run_inside(index, states)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
