"""Attention matrices, whole."""

import torch


def plainly(heads):
    """(sequences, heads, n, n): whole attention matrices."""
    key = heads.key.repeat_interleave(heads.query.shape[1] // heads.key.shape[1], 1)
    logits = heads.scaling * heads.query @ key.mT
    if heads.softcap is not None:
        logits = heads.softcap * torch.tanh(logits / heads.softcap)
    return torch.softmax(logits if heads.mask is None else logits + heads.mask, -1)
