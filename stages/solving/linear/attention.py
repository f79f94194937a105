"""Builds a block's AttentionProblem from stored hidden states, read batch by batch, with a cache of the first ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from stages.artifacts.activations import read_sequences, states_shape
from stages.linalg.attention import Heads
from stages.methods.attention.contract import AttentionProblem
from stages.methods.linear.contract import LinearProblem
from stages.models.streaming.attention import AttentionProbe
from stages.models.structure import Linear
from stages.solving.plan import BlockInputs
from stages.walk.held_out import fitted_sequences

CACHE_BYTES = 1 << 27
"""Size up to which a BatchCache grows: 128 MiB, however many sequences there are."""
T = TypeVar("T")


@dataclass
class BatchCache:
    """Caches what a block's attention makes of batches of sequences, first come, up to CACHE_BYTES.

    Batches beyond that are computed again every time, with the same values.
    """

    entries: dict[Any, Any] = field(default_factory=dict)
    size: int = 0

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """The entry of `key`, tensors or trees of them; made by `make`, and cached if it fits."""
        if key in self.entries:
            return cast("T", self.entries[key])
        made = make()
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
        if self.size + size <= CACHE_BYTES:
            self.entries[key], self.size = made, self.size + size
        return made


@dataclass(frozen=True)
class StoredInputs:
    """Queries and keys of a block, batch by batch, from files of hidden states: the AttentionInputs of the pipeline.

    probe:   of the loaded block.
    weights: dense weights (d_out, d_in) of its q and k.
    states:  file of hidden states that enter the pruned block.
    dense_states: those of the dense model for the same tokens; the same file where the matrices to be preserved are
             those of the dense weights on the pruned model's inputs.
    first, last: range of sequences, `last` excluded.
    batch_size:  sequences in a batch.
    cache:   shared by all inputs of one problem.
    """

    probe: AttentionProbe
    weights: Mapping[Linear, Tensor]
    states: Path
    dense_states: Path
    first: int
    last: int
    batch_size: int
    cache: BatchCache

    @property
    def batches(self) -> int:
        """Number of batches; the last may be smaller."""
        return -(-(self.last - self.first) // self.batch_size)

    @torch.no_grad()
    def dense(self, batch: int) -> Heads:
        """Queries and keys of the dense weights; see AttentionInputs.dense."""
        return self.cache.get(("dense", self._span(batch)), lambda: self._heads(self.dense_states, batch, self.weights))

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        """Queries and keys of a stacked weight (d_q + d_k, d_in), differentiable in it; see AttentionInputs.pruned."""
        parts = weight.split([linear.shape[0] for linear in self.probe.linears])
        return self._heads(self.states, batch, dict(zip(self.probe.linears, parts, strict=True)))

    def _heads(self, states: Path, batch: int, weights: Mapping[Linear, Tensor]) -> Heads:
        span = self._span(batch)
        call = self.cache.get((str(states), span), lambda: self.probe.call(read_sequences(states, *span)))
        return Heads(*self.probe.queries_and_keys(call, weights))

    def _span(self, batch: int) -> tuple[int, int]:
        start = self.first + batch * self.batch_size
        return start, min(start + self.batch_size, self.last)


@contextmanager
def attention_problem(
    inputs: BlockInputs, linear: LinearProblem, dense: Tensor, batch_size: int, corrected: bool
) -> Iterator[AttentionProblem]:
    """Builds the AttentionProblem of a block's q and k from its stored hidden states; valid inside the context.

    linear:     q and k as a layer-wise problem, their rows stacked; dense: (d_q + d_k, d_in) their dense weights.
    batch_size: sequences in a batch.
    corrected:  whether the matrices to be preserved are the dense model's on its own states, or those of the dense
                weights on the states that enter the pruned block.
    The calibration sequences are split as everywhere (walk/held_out.py); there must be at least two.
    """
    sequences = states_shape(inputs.states)[0]
    fitted = fitted_sequences(sequences)
    dense_states = inputs.dense_states if corrected else inputs.states
    with AttentionProbe(inputs.model, inputs.index) as probe:
        weights, cache = dict(zip(probe.linears, dense.split(linear.rows), strict=True)), BatchCache()

        def sequences_from(first: int, last: int) -> StoredInputs:
            return StoredInputs(probe, weights, inputs.states, dense_states, first, last, batch_size, cache)

        yield AttentionProblem(linear, dense, sequences_from(0, fitted), sequences_from(fitted, sequences))
