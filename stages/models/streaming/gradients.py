"""Gradients of the language-model loss, one block at a time and backwards.

What the loss gains with the states leaving a block is known from the block after it; the block's own forward, run
again on what entered it, turns that into the gradients of its weights and of the states entering it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stages.models.streaming.streamed import StreamedModel

LOGITS_BYTES = 64 * 2**20
"""Logits in memory at once: norm and head go token by token, so a sequence can be cut anywhere."""


class Gradients(NamedTuple):
    """entering: (1, length, width), of the states entering a block; parameters: of its linears', by name.

    outputs: (1, length, d_out), of the outputs of the linears that were asked for, by name.
    """

    entering: Tensor
    parameters: dict[str, Tensor]
    outputs: dict[str, Tensor]


def loss_gradient(logits: Callable[[Tensor], Tensor], states: Tensor, tokens: Tensor) -> tuple[float, Tensor]:
    """The loss of one sequence, and its gradient in the states that left the last block.

    loss = mean over the n - 1 next tokens of -log p(token | the tokens before it).

    logits: see StreamedModel.ended; states: (1, n, width); tokens: (n,) ids.
    """
    scored = len(tokens) - 1
    gradient, loss, start = torch.zeros_like(states), 0.0, 0
    piece = 1
    while start < scored:
        stop = min(start + piece, scored)
        entering = states[:, start:stop].detach().requires_grad_()
        found = logits(entering)[0]
        targets = tokens[start + 1 : stop + 1].to(found.device, torch.int64)
        part = nn.functional.cross_entropy(found.float(), targets, reduction="sum") / scored
        gradient[:, start:stop] = torch.autograd.grad(part, entering)[0]
        loss, start = loss + part.item(), stop
        piece = max(1, LOGITS_BYTES // (4 * found.shape[-1]))
    return loss, gradient


class Differentiable(NamedTuple):
    """A loaded block: its linears' weights and biases, by name and as they are stored, and the way back through it.

    backward: from the states entering it (1, length, width) and the gradient in those leaving it, to Gradients.
    """

    parameters: dict[str, Tensor]
    backward: Callable[[Tensor, Tensor], Gradients]


@contextmanager
def differentiable(model: StreamedModel, index: int, outputs: Sequence[str] = ()) -> Iterator[Differentiable]:
    """Block `index`, loaded to go back through; outputs: names of linears whose outputs' gradients are wanted."""
    with model.loaded(index):
        parameters = {
            f"{linear.name}.{part}": value.requires_grad_()
            for linear in model.linears(index)
            for part in ("weight", "bias")
            if (value := getattr(model.module(linear.name), part)) is not None
        }

        def backward(entering: Tensor, leaving: Tensor) -> Gradients:
            entering, seen = entering.detach().to(model.device, model.dtype).requires_grad_(), dict[str, Tensor]()
            with ExitStack() as stack:
                for name in outputs:
                    note = partial(_note, seen, name)
                    stack.callback(model.module(name).register_forward_hook(note).remove)
                output = model.run(index, entering)
            wanted = {**parameters, **seen}
            found = torch.autograd.grad(output, [entering, *wanted.values()], leaving.to(output))
            told = dict(zip(wanted, found[1:], strict=True))
            return Gradients(found[0], {name: told[name] for name in parameters}, {name: told[name] for name in seen})

        yield Differentiable(parameters, backward)


def _note(seen: dict[str, Tensor], name: str, module: nn.Module, args: Any, output: Tensor) -> None:
    seen[name] = output
