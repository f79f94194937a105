"""See what enters the linears of a block while the real model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from stages.models.streaming.streamed import EndForward, StreamedModel
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
def writes_to_residual(model: StreamedModel, index: int, groups: Sequence[tuple[Linear, ...]]) -> list[bool]:
    """For each group of the loaded block, whether it is one linear whose output is added to the hidden states.

    So are o and down where no norm comes after them. Found by running the block on zeros with the answers
    of all such linears replaced: if one answers δ and the others 0, the block must answer δ more.
    """
    alone = [linears[0] if len(linears) == 1 and linears[0].shape[0] == model.width else None for linears in groups]
    answer = torch.linspace(-1, 1, model.width, device=model.device, dtype=model.dtype)
    silent = _with_answers(model, index, {linear: 0 * answer for linear in alone if linear})
    found = []
    for linear in alone:
        answers = {other: answer if other is linear else 0 * answer for other in alone if other}
        change = None if linear is None else _with_answers(model, index, answers) - silent
        found.append(change is not None and bool(torch.allclose(change, answer.expand_as(change), atol=0.02)))
    return found


def _with_answers(model: StreamedModel, index: int, answers: Mapping[Linear, Tensor]) -> Tensor:
    """The block's output for zeros, its linears answering these, (d_out,), whatever they are given."""
    with ExitStack() as stack:
        for linear, answer in answers.items():

            def reply(module: nn.Module, args: Any, output: Tensor, answer: Tensor = answer) -> Tensor:
                return answer.expand_as(output)

            stack.callback(model.module(linear.name).register_forward_hook(reply).remove)
        return model.run(index, torch.zeros(1, PROBE_TOKENS, model.width))


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
                    raise EndForward

            stack.callback(model.module(linears[0].name).register_forward_pre_hook(enter).remove)
        for states in chunks:
            model.run_inside(index, states)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
