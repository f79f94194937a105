"""The walk over the blocks: what enters each linear, and what leaves a block.

One place for both kinds of inputs: the dense model's, and those a partly pruned model gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.activations import read_states, states_shape, writer_of
from stages.errors import NotFiniteError
from stages.linalg.correction import Shortfall
from stages.linalg.gram import GramSum
from stages.models.capture import feed_inputs, input_groups
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear

HELD_OUT = 8
"""One sequence in so many is held out, to choose by."""


def fitted_sequences(sequences: int) -> int:
    """How many of these, the first ones, are fitted to; at least one is held out."""
    return sequences - max(sequences // HELD_OUT, 1)


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
    shortfalls: tuple[Shortfall, Shortfall] | None = None
    """Against the dense model: on the tokens to fit to, and on those held out."""

    @classmethod
    def of(
        cls, linears: tuple[Linear, ...], total: GramSum, shortfalls: tuple[Shortfall, Shortfall] | None = None
    ) -> InputStatistics:
        """From the sums; raises NotFiniteError that names the linear."""
        gram = total.mean_gram()
        if not torch.isfinite(gram).all():
            raise NotFiniteError(
                f"the inputs of {linears[0].name} (block {linears[0].block}) are not finite on this calibration text: "
                "use compute.dtype float32 or bfloat16, or check the model"
            )
        return cls(tuple(linear.name for linear in linears), gram, total.mean(), total.tokens, shortfalls)

    def only(self, names: Sequence[str], rows: Mapping[str, int]) -> InputStatistics:
        """For some of the linears; `rows` (d_out) of each."""
        if self.shortfalls is None or tuple(names) == self.linears:
            return dataclasses.replace(self, linears=tuple(names))
        fit, held = (
            shortfall.only([name in names for name in self.linears], list(rows.values()))
            for shortfall in self.shortfalls
        )
        return dataclasses.replace(self, linears=tuple(names), shortfalls=(fit, held))


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
    return [InputStatistics.of(linears, total) for linears, total in zip(groups, sums, strict=True)]


def write_embeddings(model: StreamedModel, tokens: Tensor, path: Path, file_format: str, dtype: torch.dtype) -> None:
    """Write the hidden states entering block 0 for token ids (sequences, length)."""
    shape = (*tokens.shape, model.width)
    with writer_of(path, file_format, shape, dtype) as writer:  # type: ignore[arg-type]
        for states in model.embed(tokens):
            writer.append(in_dtype(states, dtype, "the embeddings give"))


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
            writer.append(in_dtype(model.run(index, states), dtype, f"block {index} gives"))


def finite(states: Tensor, what: str) -> Tensor:
    """The states; raises NotFiniteError unless they are finite."""
    if not torch.isfinite(states).all():
        raise NotFiniteError(
            f"{what} hidden states that are not finite: use compute.dtype float32 or bfloat16, or check the model"
        )
    return states


def in_dtype(states: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """The states in the dtype that they are stored in; raises NotFiniteError unless they are finite before and then."""
    stored = finite(states, what).to(dtype)
    if dtype != states.dtype and not torch.isfinite(stored).all():
        raise NotFiniteError(
            f"{what} hidden states of {float(states.abs().max()):g}: expected at most {torch.finfo(dtype).max:g}, "
            f"which {str(dtype).removeprefix('torch.')} holds: set extract.dtype to auto, float32 or bfloat16"
        )
    return stored
