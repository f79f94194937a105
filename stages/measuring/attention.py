"""How far the attention matrices of a pruned model are from the dense model's, block by block.

Both models are walked side by side. One block of each is in memory, and the hidden states entering it: their size
does not depend on how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from stages.linalg.attention import Errors, Heads, errors_between
from stages.linalg.spectral import smallest_eigenvalue
from stages.models.streaming.attention import QueriesAndKeys
from stages.models.streaming.observed_attention import observed_attention
from stages.models.streaming.streamed import StreamedModel
from stages.walk.forward import finite


class BlockErrors(NamedTuple):
    """Of one block on one text, against the dense model's attention matrices.

    dense: the pruned block on the dense model's hidden states, what its own weights do (the paper's definition);
    own:   on the hidden states that the pruned model itself has for the same tokens;
    smallest_eigenvalue: of X Xᵀ over the sequences, X (n, width) entering the dense model's attention (the paper's β).
    """

    dense: Errors
    own: Errors
    smallest_eigenvalue: float


class States(NamedTuple):
    """Hidden states (sequences, n, width) entering a block of both models, for the same tokens."""

    dense: Tensor
    pruned: Tensor


def compared(
    dense: StreamedModel, pruned: StreamedModel, texts: Mapping[str, Tensor], chunk: int
) -> Iterator[dict[str, BlockErrors]]:
    """For each block the errors on every text, token ids (sequences, n), of which `chunk` sequences go together.

    Raises ArchitectureError where the attention of a block cannot be reached.
    """
    states = {text: _embedded(dense, pruned, tokens, chunk) for text, tokens in texts.items()}
    for index in range(dense.blocks):
        with dense.loaded(index), pruned.loaded(index):
            yield {text: _block_errors(dense, pruned, index, chunks) for text, chunks in states.items()}
            if index + 1 < dense.blocks:
                for chunks in states.values():
                    for place, one in enumerate(chunks):
                        chunks[place] = States(_after(dense, index, one.dense), _after(pruned, index, one.pruned))


def heads_of(asked: QueriesAndKeys) -> Heads:
    """The same queries and keys for linalg.attention, in float32 at least: half-precision logits are too coarse."""
    wide = torch.promote_types(asked.query.dtype, torch.float32)
    return Heads(*asked._replace(query=asked.query.to(wide), key=asked.key.to(wide)))


def _block_errors(dense: StreamedModel, pruned: StreamedModel, index: int, chunks: list[States]) -> BlockErrors:
    found = list[BlockErrors]()
    with observed_attention(dense, index) as ask_dense, observed_attention(pruned, index) as ask_pruned:
        for states in chunks:
            inputs, asked = ask_dense(states.dense)
            meant = heads_of(asked)
            on_dense, on_own = (heads_of(ask_pruned(entering).queries_and_keys) for entering in states)
            beta = min(smallest_eigenvalue(one) for one in inputs)
            found.append(BlockErrors(errors_between(on_dense, meant), errors_between(on_own, meant), beta))
    total = found[0]
    for one in found[1:]:
        betas = total.smallest_eigenvalue, one.smallest_eigenvalue
        total = BlockErrors(total.dense.plus(one.dense), total.own.plus(one.own), min(betas))
    return total


def _embedded(dense: StreamedModel, pruned: StreamedModel, tokens: Tensor, chunk: int) -> list[States]:
    both = (torch.cat(list(model.embed(tokens))).split(chunk) for model in (dense, pruned))
    return [States(*pair) for pair in zip(*both, strict=True)]


def _after(model: StreamedModel, index: int, states: Tensor) -> Tensor:
    return finite(model.run(index, states), f"block {index} gives")
