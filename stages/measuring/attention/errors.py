"""Errors of a pruned model's attention matrices against the dense model's, block by block.

Both models are walked side by side. One block of each is in memory, and the hidden states entering it: their size
does not depend on how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from stages.linalg.attention import AttentionErrors, Heads, errors_between
from stages.linalg.spectral import smallest_eigenvalue
from stages.models.streaming.attention import QueriesAndKeys
from stages.models.streaming.observed_attention import observed_attention
from stages.models.streaming.streamed import StreamedModel
from stages.walk.forward import finite


class BlockErrors(NamedTuple):
    """Errors of one block's attention matrices on one text, against the dense model's.

    dense: the pruned block on the dense model's hidden states, what its own weights do (the paper's definition);
    own:   on the hidden states that the pruned model itself has for the same tokens;
    smallest_eigenvalue: of X Xᵀ over the sequences, X (n, width) entering the dense model's attention (the paper's β).
    """

    dense: AttentionErrors
    own: AttentionErrors
    smallest_eigenvalue: float

    def plus(self, other: BlockErrors) -> BlockErrors:
        """The errors over the sequences of both."""
        beta = min(self.smallest_eigenvalue, other.smallest_eigenvalue)
        return BlockErrors(self.dense.plus(other.dense), self.own.plus(other.own), beta)


class States(NamedTuple):
    """Hidden states (sequences, n, width) entering a block of both models, for the same tokens."""

    dense: Tensor
    pruned: Tensor


def block_errors(
    dense: StreamedModel, pruned: StreamedModel, texts: Mapping[str, Tensor], chunk: int
) -> Iterator[dict[str, BlockErrors]]:
    """For each block the errors on every text, token ids (sequences, n), of which `chunk` sequences go together.

    Raises ArchitectureError where the attention of a block cannot be reached.
    """
    entering = {text: _embedded(dense, pruned, tokens, chunk) for text, tokens in texts.items()}
    for index in range(dense.blocks):
        with dense.loaded(index), pruned.loaded(index):
            yield {text: _errors_of_block(dense, pruned, index, chunks) for text, chunks in entering.items()}
            if index + 1 < dense.blocks:
                for chunks in entering.values():
                    for place, states in enumerate(chunks):
                        chunks[place] = States(_run(dense, index, states.dense), _run(pruned, index, states.pruned))


def wide_heads(computed: QueriesAndKeys) -> Heads:
    """The same queries and keys for linalg.attention, in float32 at least: half-precision logits are too coarse."""
    wide = torch.promote_types(computed.query.dtype, torch.float32)
    return Heads(*computed._replace(query=computed.query.to(wide), key=computed.key.to(wide)))


def _errors_of_block(dense: StreamedModel, pruned: StreamedModel, index: int, chunks: list[States]) -> BlockErrors:
    errors = list[BlockErrors]()
    with observed_attention(dense, index) as observe_dense, observed_attention(pruned, index) as observe_pruned:
        for states in chunks:
            inputs, computed = observe_dense(states.dense)
            target = wide_heads(computed)
            on_dense, on_own = (wide_heads(observe_pruned(entering).queries_and_keys) for entering in states)
            beta = min(smallest_eigenvalue(sequence) for sequence in inputs)
            errors.append(BlockErrors(errors_between(on_dense, target), errors_between(on_own, target), beta))
    return reduce(BlockErrors.plus, errors)


def _embedded(dense: StreamedModel, pruned: StreamedModel, tokens: Tensor, chunk: int) -> list[States]:
    """Hidden states entering block 0 of both models, in chunks of sequences."""
    both = (torch.cat(list(model.embed(tokens))).split(chunk) for model in (dense, pruned))
    return [States(*pair) for pair in zip(*both, strict=True)]


def _run(model: StreamedModel, index: int, states: Tensor) -> Tensor:
    return finite(model.run(index, states), f"block {index} gives")
