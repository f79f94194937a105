"""Backpropagation of the language-model loss one block at a time, from the last block to the first.

The gradient in the output states of a block comes from the block after it; the block's own forward, run again on its
input states, turns that into the gradients of its weights and of its input states.
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
"""Memory of logits at once: norm and head act on each token alone, so a sequence can be cut anywhere."""


class Gradients(NamedTuple):
    """Gradients of the loss at one block, for one sequence.

    entering:   (1, length, width), in the block's input states.
    parameters: in the weights and biases of its linears, by name, shaped as they are stored.
    outputs:    (1, length, d_out), in the outputs of the linears that `differentiable` was given, by name.
    """

    entering: Tensor
    parameters: dict[str, Tensor]
    outputs: dict[str, Tensor]


def loss_gradient(logits: Callable[[Tensor], Tensor], states: Tensor, tokens: Tensor) -> tuple[float, Tensor]:
    """Language-model loss of one sequence, and its gradient (1, n, width) in the output states of the last block.

    loss = mean over the n - 1 next tokens of -log p(token | the tokens before it).

    logits: see StreamedModel.ended; states: (1, n, width); tokens: (n,) ids.
    """
    scored = len(tokens) - 1
    gradient, loss, start = torch.zeros_like(states), 0.0, 0
    piece = 1
    while start < scored:
        stop = min(start + piece, scored)
        entering = states[:, start:stop].detach().requires_grad_()
        scores = logits(entering)[0]
        targets = tokens[start + 1 : stop + 1].to(scores.device, torch.int64)
        part = nn.functional.cross_entropy(scores.float(), targets, reduction="sum") / scored
        gradient[:, start:stop] = torch.autograd.grad(part, entering)[0]
        loss, start = loss + part.item(), stop
        piece = max(1, LOGITS_BYTES // (4 * scores.shape[-1]))
    return loss, gradient


class Differentiable(NamedTuple):
    """A loaded block through which gradients can be propagated.

    parameters: weights and biases of its linears, by name, as they are stored.
    backward:   from input states (1, length, width) and the gradient in the output states to Gradients.
    """

    parameters: dict[str, Tensor]
    backward: Callable[[Tensor, Tensor], Gradients]


@contextmanager
def differentiable(model: StreamedModel, index: int, outputs: Sequence[str] = ()) -> Iterator[Differentiable]:
    """Context in which block `index` is loaded for backpropagation.

    outputs: names of linears in whose outputs gradients are wanted.
    """
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
            first, *others = torch.autograd.grad(output, [entering, *wanted.values()], leaving.to(output))
            by_name = dict(zip(wanted, others, strict=True))
            inside, outside = ({name: by_name[name] for name in names} for names in (parameters, seen))
            return Gradients(first, inside, outside)

        yield Differentiable(parameters, backward)


def _note(seen: dict[str, Tensor], name: str, module: nn.Module, args: Any, output: Tensor) -> None:
    seen[name] = output
