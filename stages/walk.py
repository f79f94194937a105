"""The walk over the blocks: what enters each linear, and what leaves a block.

One place for both kinds of inputs: the dense model's, and those a partly pruned model gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.activations import read_states, states_shape, writer_of
from stages.errors import NotFiniteError
from stages.linalg.gram import GramSum
from stages.models.capture import feed_inputs, input_groups
from stages.models.streamed import StreamedModel


@dataclass(frozen=True)
class InputStatistics:
    """What is known of one input of a block's linears.

    linears: names of the linears that share it; gram: (d_in, d_in) mean of x xᵀ; mean: (d_in,);
    tokens: how many.
    """

    linears: tuple[str, ...]
    gram: Tensor
    mean: Tensor
    tokens: int


def collect(model: StreamedModel, index: int, states: Path, chunk: int, dtype: torch.dtype) -> list[InputStatistics]:
    """Statistics of every distinct input of block `index`, which is fed the hidden states in a file.

    The block is the checkpoint's; `dtype` is the one sums are kept in. Raises NotFiniteError that names
    the linear whose input is not finite.
    """
    with model.loaded(index):
        first = next(read_states(states, 1))
        groups = input_groups(model, index, first)
        sums = [GramSum.zeros(linears[0].shape[1], dtype, model.device) for linears in groups]
        feed_inputs(model, index, read_states(states, chunk), groups, lambda group, inputs: sums[group].add(inputs))
    found = []
    for linears, total in zip(groups, sums, strict=True):
        gram = total.mean_gram()
        if not torch.isfinite(gram).all():
            raise NotFiniteError(
                f"the inputs of {linears[0].name} (block {index}) are not finite on this calibration text: "
                "use compute.dtype float32 or bfloat16, or check the model"
            )
        names = tuple(linear.name for linear in linears)
        found.append(InputStatistics(names, gram, total.mean(), total.tokens))
    return found


def write_embeddings(model: StreamedModel, tokens: Tensor, path: Path, file_format: str, dtype: torch.dtype) -> None:
    """Write the hidden states entering block 0 for token ids (sequences, length)."""
    shape = (*tokens.shape, model.width)
    with writer_of(path, file_format, shape, dtype) as writer:  # type: ignore[arg-type]
        for states in model.embed(tokens):
            writer.append(_finite(states, "the embeddings give").to(dtype))


def advance(
    model: StreamedModel,
    index: int,
    source: Path,
    target: Path,
    chunk: int,
    file_format: str,
    dtype: torch.dtype,
    replaced: Mapping[str, Tensor] | None = None,
) -> None:
    """Write what block `index`, with `replaced` tensors, makes of the hidden states in `source`."""
    with model.loaded(index, replaced), writer_of(target, file_format, states_shape(source), dtype) as writer:
        for states in read_states(source, chunk):
            writer.append(_finite(model.run(index, states), f"block {index} gives").to(dtype))


def _finite(states: Tensor, what: str) -> Tensor:
    if not torch.isfinite(states).all():
        raise NotFiniteError(
            f"{what} hidden states that are not finite: use compute.dtype float32 or bfloat16, or check the model"
        )
    return states
