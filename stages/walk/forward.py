"""Hidden states carried from block to block: embeddings, then each block's output, written to files.

For both kinds of states: the dense model's and those of a partly pruned model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.activations import read_states, states_shape, writer_of
from stages.errors import NotFiniteError
from stages.models.streaming.streamed import StreamedModel


def widest_linear(model: StreamedModel) -> dict[str, Any]:
    """Name of the linear with the most inputs, and how many: as many tokens give its Gram matrix full rank."""
    linears = (linear for index in range(model.blocks) for linear in model.linears(index))
    widest = max(linears, key=lambda linear: linear.shape[1])
    return {"linear": widest.name, "inputs": widest.shape[1]}


def write_entering(
    model: StreamedModel,
    index: int,
    before: Path | None,
    tokens: Tensor,
    chunk: int,
    file_format: str,
    dtype: torch.dtype,
    path: Path,
) -> None:
    """Write the dense model's hidden states entering block `index` for token ids (sequences, length).

    before: the file of those entering the block before; None for the first, which the embeddings enter.
    """
    if before is None:
        write_embeddings(model, tokens, path, file_format, dtype)
    else:
        advance(model, index - 1, before, path, chunk, file_format, dtype)


def write_embeddings(model: StreamedModel, tokens: Tensor, path: Path, file_format: str, dtype: torch.dtype) -> None:
    """Write the hidden states (sequences, length, width) entering block 0 for token ids (sequences, length)."""
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
    """Write the output of block `index` for the hidden states in `source`, `chunk` sequences at a time.

    replaced: tensors in place of the checkpoint's, by parameter name. Raises NotFiniteError, see `in_dtype`.
    """
    with model.loaded(index, replaced), writer_of(target, file_format, states_shape(source), dtype) as writer:
        for states in read_states(source, chunk):
            writer.append(in_dtype(model.run(index, states), dtype, f"block {index} gives"))


def finite(states: Tensor, what: str) -> Tensor:
    """The same states; raises NotFiniteError unless they are finite. what: their source, for the error's text."""
    if not torch.isfinite(states).all():
        raise NotFiniteError(
            f"{what} hidden states that are not finite: use compute.dtype float32 or bfloat16, or check the model"
        )
    return states


def in_dtype(states: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """States cast to the dtype they are stored in; raises NotFiniteError where they are, or then become, not finite."""
    stored = finite(states, what).to(dtype)
    if dtype != states.dtype and not torch.isfinite(stored).all():
        raise NotFiniteError(
            f"{what} hidden states of {float(states.abs().max()):g}: expected at most {torch.finfo(dtype).max:g}, "
            f"which {str(dtype).removeprefix('torch.')} holds: set extract.dtype to auto, float32 or bfloat16"
        )
    return stored
