"""The paper's model: embedding, multi-head attention, mean over tokens, linear; in fewer operations.

The mean over tokens goes through the linear maps v and o, so that they are applied once a head and not once a token.
Without positions, equal tokens of a text have equal rows; each is computed once and counted. Both are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.gating.groups import Groups, units


class Classifier(nn.Module):
    """Texts as distinct tokens (texts, tokens) with their counts (0 is padding) to logits (texts, classes)."""

    def __init__(self, vocabulary: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width, sparse=True)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.classify = nn.Linear(width, classes)
        bound = (6 / (4 * width)) ** 0.5  # as nn.MultiheadAttention begins: Xavier for q, k, v stacked; no biases
        for one in (self.q, self.k, self.v):
            nn.init.uniform_(one.weight, -bound, bound)
        for one in (self.q, self.k, self.v, self.o):
            nn.init.zeros_(one.bias)

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Logits, (texts, classes)."""
        x = self.embedding(tokens)
        q, k = (one(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k))
        several = counts.log()[:, None].repeat_interleave(self.heads, 0)  # a token n times adds log n to its logit
        logits = torch.baddbmm(several, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        attention = logits.softmax(2).unflatten(0, (-1, self.heads))
        share = counts / counts.sum(1, keepdim=True)
        pooled = (share[:, None, None] @ attention).squeeze(
            2
        ) @ x  # (texts, heads, width): the mean of what a head sees
        v = self.v.weight.unflatten(0, (self.heads, -1))
        values = torch.einsum("thw,hdw->thd", pooled, v).flatten(1) + self.v.bias
        return self.classify(self.o(values))


def head_groups(heads: int) -> Groups:
    """All parameters of a head: rows and biases of q, k and v, columns of o."""
    made = [f"{linear}.{part}" for linear in "qkv" for part in ("weight", "bias")]
    return units(heads, rows=made, columns=["o.weight"])
