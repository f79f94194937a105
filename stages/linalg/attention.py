"""Error of an attention matrix softmax(s Q Kᵀ + mask) against the dense model's, and its gradient in closed form.

No matrix of all heads, queries and keys is held in memory: rows are taken a few at a time. Paper: Liang et al. 2025,
"Beyond Linear Approximations: A Novel Pruning Approach for Attention Matrix", arXiv:2410.11261.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

HELD = 1 << 18
"""Entries of attention matrices that are in memory at once: what a processor's cache holds."""


class Heads(NamedTuple):
    """Queries, keys, mask and scaling of the attention matrix f = softmax(s Q Kᵀ + mask), for some sequences.

    query: (sequences, heads, n, d_head); key: (sequences, key heads, n, d_head), after norms and rotary embedding;
           heads are a multiple of key heads, and those that share one lie together.
    mask:  added to the logits, (sequences or 1, heads or 1, n, n), 0 or the lowest number of its dtype, which may be
           another than the query's; None: all see all.
    scaling: s; softcap: logits z become cap tanh(z / cap), None: they stay.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    softcap: float | None = None


class AttentionErrors(NamedTuple):
    """Squared error of pruned attention matrices f̃ against dense ones f, summed over sequences and rows.

    Each for every head, (heads,), in float64.

    error: ‖f̃ - f‖²; energy: ‖f‖²; least: the smallest probability of f̃ that no mask excludes (the paper's δ).
    """

    error: Tensor
    energy: Tensor
    least: Tensor

    @property
    def relative(self) -> Tensor:
        """Relative error of each head (Liang et al., Figure 2)."""
        return self.error / self.energy

    @property
    def total(self) -> float:
        """Relative error of all heads together."""
        return float(self.error.sum() / self.energy.sum())

    def plus(self, other: AttentionErrors) -> AttentionErrors:
        """Errors over the sequences of both."""
        least = torch.minimum(self.least, other.least)
        return AttentionErrors(self.error + other.error, self.energy + other.energy, least)


def causal_mask(n: int, like: Tensor) -> Tensor:
    """Causal mask (1, 1, n, n) in the dtype of `like`: 0 where a query may see a key, its lowest number elsewhere."""
    hidden = torch.ones(n, n, dtype=torch.bool, device=like.device).triu(1)
    return torch.zeros(n, n, dtype=like.dtype, device=like.device).masked_fill(hidden, _lowest(like))[None, None]


@torch.no_grad()
def errors_between(pruned: Heads, dense: Heads) -> AttentionErrors:
    """Errors of the attention matrices of `pruned` against those of `dense`, and their smallest probability."""
    heads = pruned.query.shape[1]
    error, energy = (torch.zeros(heads, dtype=torch.float64, device=pruned.query.device) for _ in range(2))
    least = torch.ones_like(error)
    for sequence, rows, keys in _pieces(pruned):
        ours, theirs = (_probabilities(heads, sequence, rows, keys) for heads in (pruned, dense))
        energy += theirs.square().sum((1, 2), dtype=torch.float64)
        error += (ours - theirs).square().sum((1, 2), dtype=torch.float64)
        shown = ours if pruned.mask is None else ours.masked_fill(_hidden(pruned.mask, sequence, rows, keys), 1.0)
        least = torch.minimum(least, shown.amin((1, 2)).double())
    return AttentionErrors(error, energy, least)


def squared_error(pruned: Heads, dense: Heads) -> Tensor:
    """‖f̃ - f‖², summed over sequences, heads and rows; differentiable in the query and the key of `pruned`.

    With c = f̃ - f, p₁ = c ∘ f̃ and p = p₁ - diag(p₁ 1) f̃ (Liang et al., Definition D.1; line 13 of their
    Algorithm 1 misprints p₁ as c ∘ f), half of it has the gradient p with respect to the logits, so that

        ∂/∂Q = 2 s p K,   ∂/∂K = 2 s pᵀ Q,

    p times 1 - (z / cap)² where logits are capped. Summed in the pass that computes the error.
    """
    error: Tensor = _SquaredError.apply(pruned.query, pruned.key, pruned, dense)  # type: ignore[no-untyped-call]
    return error


class _SquaredError(torch.autograd.Function):
    """‖f̃ - f‖² whose gradients are computed in the forward, since it has every probability at hand."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, pruned: Heads, dense: Heads) -> Tensor:
        pruned = pruned._replace(query=query, key=key)
        wanted = any(ctx.needs_input_grad[:2])
        d_query, d_key = torch.zeros_like(query), torch.zeros_like(key)
        total = torch.zeros((), dtype=torch.float64, device=query.device)
        for sequence, rows, keys in _pieces(pruned):
            ours, theirs = (_probabilities(heads, sequence, rows, keys) for heads in (pruned, dense))
            difference = ours - theirs
            total += torch.linalg.vector_norm(difference).double().square()
            if wanted:
                p = difference.mul_(ours)
                p.addcmul_(p.sum(-1, keepdim=True), ours, value=-1)
                p = _through_cap(p, pruned, sequence, rows, keys).flatten(0, 1).unflatten(0, (key.shape[1], -1))
                queries = query[sequence, :, rows].reshape(key.shape[1], -1, query.shape[-1])
                product = (p @ key[sequence, :, keys]).view(query.shape[1], -1, query.shape[-1])
                d_query[sequence, :, rows] = product.mul_(2 * pruned.scaling)
                d_key[sequence, :, keys].baddbmm_(p.mT, queries, alpha=2 * pruned.scaling)
        ctx.save_for_backward(d_query, d_key)
        return total.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:  # type: ignore[override]
        d_query, d_key = ctx.saved_tensors
        return upstream * d_query, upstream * d_key, None, None


def _pieces(heads: Heads) -> Iterator[tuple[int, slice, slice]]:
    """(sequence, query rows, keys that these may see at most): pieces of at most HELD entries over all heads."""
    sequences, count, n, _ = heads.query.shape
    step = max(HELD // (count * heads.key.shape[2]), 1)
    for sequence in range(sequences):
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield sequence, rows, slice(0, _last_seen(heads, sequence, rows))


def _last_seen(heads: Heads, sequence: int, rows: slice) -> int:
    """Number of leading keys that hold every key which any of the query rows may see."""
    n = heads.key.shape[2]
    if heads.mask is None:
        return n
    seen = (~_hidden(heads.mask, sequence, rows, slice(0, n))).any(0).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else n


def _hidden(mask: Tensor, sequence: int, rows: slice, keys: slice) -> Tensor:
    """Where the mask excludes a key, (heads or 1, rows, keys) bool."""
    return _of_sequence(mask, sequence)[:, rows, keys] <= _lowest(mask) / 2


def _probabilities(heads: Heads, sequence: int, rows: slice, keys: slice) -> Tensor:
    """Rows of the attention matrix, (heads, rows, keys)."""
    logits = _logits(heads, sequence, rows, keys)
    if heads.softcap is not None:
        logits = torch.tanh(logits / heads.softcap) * heads.softcap
    if heads.mask is not None:
        logits = logits + _of_sequence(heads.mask, sequence)[:, rows, keys]
    return torch.softmax(logits, -1)


def _logits(heads: Heads, sequence: int, rows: slice, keys: slice) -> Tensor:
    """s Q Kᵀ before cap and mask, (heads, rows, keys); heads that share a key in one product."""
    query, key = heads.query[sequence, :, rows], heads.key[sequence, :, keys]
    together = query.reshape(key.shape[0], -1, query.shape[-1]) * heads.scaling
    return (together @ key.mT).view(query.shape[0], query.shape[1], key.shape[1])


def _through_cap(p: Tensor, heads: Heads, sequence: int, rows: slice, keys: slice) -> Tensor:
    """Gradient p in capped logits turned into that in uncapped ones: times 1 - tanh²(z / cap)."""
    if heads.softcap is None:
        return p
    return p * (1 - torch.tanh(_logits(heads, sequence, rows, keys) / heads.softcap).square())


def _of_sequence(mask: Tensor, sequence: int) -> Tensor:
    return mask[sequence if mask.shape[0] > 1 else 0]


def _lowest(like: Tensor) -> float:
    return float(torch.finfo(like.dtype).min)
