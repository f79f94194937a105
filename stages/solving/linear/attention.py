"""The attention of one block as a problem: what enters it is read from files of hidden states, batch by batch."""

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

KEPT = 1 << 27
"""Bytes of what is made of the sequences that are kept for the next time, however many there are."""
T = TypeVar("T")


@dataclass
class Kept:
    """What was made of the first batches, up to KEPT bytes; the rest is made again whenever it is asked for."""

    found: dict[Any, Any] = field(default_factory=dict)
    size: int = 0

    def of(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once if there is room."""
        if key in self.found:
            return cast("T", self.found[key])
        made = make()
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
        if self.size + size <= KEPT:
            self.found[key], self.size = made, self.size + size
        return made


@dataclass(frozen=True)
class StoredInputs:
    """AttentionInputs of a loaded block (see stages/methods/attention/contract.py).

    probe:   of the block; weights: the dense ones of its q and k.
    states:  file of hidden states that enter the pruned block; dense_states: the dense model's for the same tokens,
             or the same file where the dense weights' matrices on the pruned inputs are to survive.
    first, last: the sequences, last not included; together: in a batch; kept: shared by all inputs of a problem.
    """

    probe: AttentionProbe
    weights: Mapping[Linear, Tensor]
    states: Path
    dense_states: Path
    first: int
    last: int
    together: int
    kept: Kept

    @property
    def batches(self) -> int:
        """How many batches there are; the last may be smaller."""
        return -(-(self.last - self.first) // self.together)

    @torch.no_grad()
    def dense(self, batch: int) -> Heads:
        """See AttentionInputs."""
        return self.kept.of(("dense", self._span(batch)), lambda: self._heads(self.dense_states, batch, self.weights))

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        """See AttentionInputs."""
        parts = weight.split([linear.shape[0] for linear in self.probe.linears])
        return self._heads(self.states, batch, dict(zip(self.probe.linears, parts, strict=True)))

    def _heads(self, states: Path, batch: int, weights: Mapping[Linear, Tensor]) -> Heads:
        span = self._span(batch)
        call = self.kept.of((str(states), span), lambda: self.probe.call(read_sequences(states, *span)))
        return Heads(*self.probe.asked(call, weights))

    def _span(self, batch: int) -> tuple[int, int]:
        start = self.first + batch * self.together
        return start, min(start + self.together, self.last)


@contextmanager
def attention_problem(
    given: BlockInputs, linear: LinearProblem, dense: Tensor, together: int, corrected: bool
) -> Iterator[AttentionProblem]:
    """The q and k of a block as an AttentionProblem; `linear` and `dense`: their rows stacked.

    together:  sequences in a batch.
    corrected: whether the dense model's matrices are to survive, not those of the dense weights on these states.
    One sequence in eight is held out; there must be at least two.
    """
    sequences = states_shape(given.states)[0]
    split = fitted_sequences(sequences)
    dense_states = given.dense_states if corrected else given.states
    with AttentionProbe(given.model, given.index) as probe:
        weights, kept = dict(zip(probe.linears, dense.split(linear.rows), strict=True)), Kept()

        def inputs(first: int, last: int) -> StoredInputs:
            return StoredInputs(probe, weights, given.states, dense_states, first, last, together, kept)

        yield AttentionProblem(linear, dense, inputs(0, split), inputs(split, sequences))
