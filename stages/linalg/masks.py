"""Keep masks with exact counts: top-k and N:M."""

from __future__ import annotations

import torch
from torch import Tensor

MANY = 4096
"""Number of scores from which on a compiled kernel is worth its start."""


def removed_count(total: int, sparsity: float) -> int:
    """Number of weights removed of `total` at `sparsity`, rounded to the nearest whole number, halves up."""
    return int(sparsity * total + 0.5)


def removed_before(removed: int, position: int, length: int) -> int:
    """How many of `removed` fall on the first `position` of `length` columns when spread evenly; all at the end."""
    return (2 * removed * position + length) // (2 * length)


def keep_largest(scores: Tensor, kept: int) -> Tensor:
    """Top-k mask, True at the `kept` largest scores along the last axis; among equal scores the first stay.

    Exact for any count, 0 and all included, with ties and in any order of memory. Scores must be finite.
    Many float32 or float64 scores on the CPU go to a kernel, all others through `keep_largest_plain`.
    """
    if kept <= 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    if kept >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    floats = scores.dtype in (torch.float32, torch.float64)
    if scores.device.type != "cpu" or not floats or scores.numel() < MANY:
        return keep_largest_plain(scores, kept)
    from stages.linalg.kernels.select_cpu import keep_largest_rows

    rows = scores.detach().reshape(-1, scores.shape[-1]).contiguous().numpy()
    return torch.from_numpy(keep_largest_rows(rows, kept, torch.get_num_threads())).view(scores.shape)


def keep_largest_plain(scores: Tensor, kept: int) -> Tensor:
    """`keep_largest` in plain tensor operations on any device, for 0 < kept < length."""
    threshold = scores.kthvalue(scores.shape[-1] - kept + 1, dim=-1, keepdim=True).values
    above, ties = scores > threshold, scores == threshold
    missing = kept - above.sum(-1, keepdim=True)
    return above | (ties & (ties.cumsum(-1) <= missing))


def groups_of(pattern: str) -> tuple[int, int] | None:
    """(n_keep, group_size) of a pattern `N:M`; None for `unstructured`."""
    if ":" not in pattern:
        return None
    n_keep, group_size = pattern.split(":")
    return int(n_keep), int(group_size)


def keep_groups(scores: Tensor, n_keep: int, group_size: int) -> Tensor:
    """N:M mask: the `n_keep` largest of every `group_size` scores along the last axis, whose length it divides."""
    grouped = scores.unflatten(-1, (-1, group_size))
    return keep_largest(grouped, n_keep).flatten(-2)


def satisfies_groups(keep: Tensor, n_keep: int, group_size: int) -> bool:
    """Whether no group of `group_size` along the last axis keeps more than `n_keep`."""
    return bool((keep.unflatten(-1, (-1, group_size)).sum(-1) <= n_keep).all())
