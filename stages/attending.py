"""What enters the attention of one block, read from the files of hidden states a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.activations import read_sequences
from stages.attention.matrix import Heads
from stages.models.attention import AttentionProbe
from stages.models.structure import Linear


@dataclass(frozen=True)
class StoredInputs:
    """AttentionInputs of a loaded block (see stages/attention/contract.py).

    probe:   of the block; weights: the dense ones of its q and k.
    states:  file of hidden states that enter the pruned block; dense_states: the dense model's for the same tokens,
             or the same file where the dense weights' matrices on the pruned inputs are to survive.
    first, last: the sequences, last not included; together: in a batch.
    """

    probe: AttentionProbe
    weights: Mapping[Linear, Tensor]
    states: Path
    dense_states: Path
    first: int
    last: int
    together: int

    @property
    def batches(self) -> int:
        """How many batches there are; the last may be smaller."""
        return -(-(self.last - self.first) // self.together)

    @torch.no_grad()
    def dense(self, batch: int) -> Heads:
        """See AttentionInputs."""
        return self._heads(self.dense_states, batch, self.weights)

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        """See AttentionInputs."""
        parts = weight.split([linear.shape[0] for linear in self.probe.linears])
        return self._heads(self.states, batch, dict(zip(self.probe.linears, parts, strict=True)))

    def _heads(self, states: Path, batch: int, weights: Mapping[Linear, Tensor]) -> Heads:
        start = self.first + batch * self.together
        call = self.probe.call(read_sequences(states, start, min(start + self.together, self.last)))
        return Heads(*self.probe.asked(call, weights))
