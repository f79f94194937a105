"""Random attentions to prune."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stages.linalg.attention import Heads, causal_mask
from stages.methods.attention.contract import AttentionProblem
from stages.methods.linear.contract import LinearProblem

WIDTH, D_HEAD, LENGTH = 24, 6, 10


@dataclass(frozen=True)
class GivenInputs:
    """AttentionInputs in memory: inputs of an attention without norms or rotary embedding."""

    given: list[Tensor]
    weight: Tensor
    rows: tuple[int, int]

    @property
    def batches(self) -> int:
        return len(self.given)

    def dense(self, batch: int) -> Heads:
        return self.pruned(batch, self.weight)

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        x = self.given[batch]
        parts = [(x @ one.T).unflatten(-1, (-1, D_HEAD)).transpose(1, 2) for one in weight.split(self.rows)]
        return Heads(parts[0], parts[1], causal_mask(x.shape[1], x), D_HEAD**-0.5)


def make_attention(seed: int = 0, dtype: torch.dtype = torch.float64, heads: int = 4, key_heads: int = 2):
    """An AttentionProblem with correlated inputs of uneven size: three batches to fit, one held out."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mix = normal(WIDTH, WIDTH) * torch.logspace(-1, 1, WIDTH, dtype=torch.float64)
    batches = [(normal(8, LENGTH, WIDTH) @ mix / WIDTH**0.5).to(dtype) for _ in range(4)]
    rows = heads * D_HEAD, key_heads * D_HEAD
    weight = (normal(sum(rows), WIDTH) / WIDTH**0.5).to(dtype)
    x = torch.cat(batches).flatten(0, 1)
    linear = LinearProblem(weight, x.T @ x / len(x), x.mean(0), len(x), rows)
    fit, held = (GivenInputs(some, weight, rows) for some in (batches[:3], batches[3:]))
    return AttentionProblem(linear, weight, fit, held)
