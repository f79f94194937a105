"""Architecture check before pruning: whether a model's blocks, run alone, compute what they do in the whole model."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages.errors import ArchitectureError, SecateurError, reason_of
from stages.models.streaming.capture import input_groups
from stages.models.streaming.streamed import EndForward, StreamedModel
from stages.models.structure import Linear

SEQUENCES, LENGTH = 2, 8
FIRST = 2
"""Number of first blocks tried whatever their kind: the second may depend on what the first kept."""
TOLERANCE = 1e-2
"""Largest difference from the whole model's hidden states, as a fraction of their largest entry."""
INDICES = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx")


def check_walk(folder: Path, trust_remote_code: bool) -> StreamedModel:
    """Open a model and check that its blocks run alone: the first ones and the first of every kind.

    One block is in memory at a time. Raises ArchitectureError, with the reason, for a model whose blocks do not run
    from their hidden states alone, or hold a linear that is not called.
    """
    try:
        model = StreamedModel(folder, torch.device("cpu"), trust_remote_code=trust_remote_code)
    except SecateurError:
        raise
    except Exception as error:  # transformers and remote code fail each in their own way
        raise ArchitectureError(f"{folder} cannot be opened block by block ({reason_of(error)})") from error
    tried = sorted({*range(min(FIRST, model.blocks)), *first_of_each_kind(model)})
    index = 0
    try:
        states = _in_the_whole_model(model, tried[-1])
        for index in tried:
            _try_block(model, index, *states[index])
    except SecateurError:
        raise
    except Exception as error:  # as above
        raise _refused(model, f"block {index} does not run on its own ({reason_of(error)})") from error
    return model


def first_of_each_kind(model: StreamedModel) -> list[int]:
    """Index of the first block of every kind: modules, shapes and settings alike but for the block's own index."""
    firsts = dict[tuple[Any, ...], int]()
    for index in range(model.blocks):
        firsts.setdefault(_kind(model.module(f"{model.prefix}.{index}")), index)
    return list(firsts.values())


def _kind(block: nn.Module) -> tuple[Any, ...]:
    """Modules of a block with their types, parameter shapes and plain settings, as a value to compare."""
    return tuple(
        (
            name,
            type(module),
            tuple((key, tuple(value.shape)) for key, value in module.named_parameters(recurse=False)),
            tuple(
                (key, value)
                for key, value in sorted(vars(module).items())
                if isinstance(value, bool | int | float | str) and key not in INDICES
            ),
        )
        for name, module in block.named_modules()
    )


def _in_the_whole_model(model: StreamedModel, last: int) -> list[tuple[Tensor, Tensor]]:
    """Input and output states of blocks 0 to `last` in the whole model's forward, each loaded when it is reached.

    Raises ArchitectureError if a block is not reached, or what leaves it is not what enters the next.
    """
    vocabulary = model.module("").get_input_embeddings().weight.shape[0]  # type: ignore[operator, union-attr]
    tokens = ((vocabulary // 2 + torch.arange(SEQUENCES * LENGTH)) % vocabulary).view(SEQUENCES, LENGTH)
    entered, left = dict[int, Tensor](), dict[int, Tensor]()
    with ExitStack() as stack:
        for index in range(min(last + 2, model.blocks)):

            def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int = index) -> None:
                entered[index] = args[0] if args else kwargs["hidden_states"]
                if index > last:
                    raise EndForward

            def leave(block: nn.Module, args: Any, output: Any, index: int = index) -> None:
                left[index] = output[0] if isinstance(output, tuple) else output

            block = model.module(f"{model.prefix}.{index}")
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(leave).remove)
        with suppress(EndForward):
            model.logits(tokens)
    for index in range(last + 1):
        if index not in left:
            raise _refused(model, f"the forward on token ids does not reach block {index} of {model.prefix}")
        if index + 1 in entered and not _same(left[index], entered[index + 1]):
            raise _refused(model, f"what leaves block {index} of {model.prefix} is not what enters the next")
    return [(entered[index], left[index]) for index in range(last + 1)]


def _try_block(model: StreamedModel, index: int, entering: Tensor, leaving: Tensor) -> None:
    """Raise ArchitectureError unless block `index`, run alone, has the output that it has in the whole model."""
    with model.loaded(index):
        groups = input_groups(model, index, entering)
        seen = {linear for group in groups for linear in group}
        unseen = [linear.name for linear in model.linears(index) if linear not in seen]
        if unseen:
            raise _refused(
                model,
                f"{unseen[0]} ({len(unseen)} of the {len(model.linears(index))} linears of block {index}) is not "
                "called when the block runs on text, so its input cannot be measured",
            )
        with _checked_inputs(model, index):
            output = model.run(index, entering)
    if not _same(output, leaving):
        raise _refused(
            model,
            f"block {index} alone gives other hidden states than in the whole model: it depends on more than the "
            "hidden states that enter it (token ids, or what earlier blocks kept)",
        )


def _checked_inputs(model: StreamedModel, index: int) -> ExitStack:
    """Context in which each linear of the loaded block raises ArchitectureError for rows not as wide as its weight."""
    stack = ExitStack()
    for linear in model.linears(index):

        def check(module: nn.Module, args: tuple[Any, ...], linear: Linear = linear) -> None:
            if args[0].shape[-1] != linear.shape[1]:
                raise _refused(
                    model,
                    f"{linear.name} is handed rows of {args[0].shape[-1]} where its weight has {linear.shape[1]} "
                    "inputs: it is not computed as a plain nn.Linear is",
                )

        stack.callback(model.module(linear.name).register_forward_pre_hook(check).remove)
    return stack


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether states agree within TOLERANCE of b's largest entry."""
    scale = float(b.abs().max()) or 1.0
    return a.shape == b.shape and torch.allclose(a, b, atol=TOLERANCE * scale, equal_nan=True)


def _refused(model: StreamedModel, why: str) -> ArchitectureError:
    return ArchitectureError(
        f"{type(model.module('')).__name__}: {why}: models are pruned block by block, each block run from its hidden "
        "states alone: use a decoder of attention and MLP blocks built of nn.Linear"
    )
