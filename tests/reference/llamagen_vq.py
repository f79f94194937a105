"""LlamaGen's VQ image tokenizer as plain functions of a state dict in the public layout.

A convolutional encoder and decoder about a codebook of unit vectors: an image's code is the row of the normalised
codebook with the largest inner product with the normalised latent (Sun et al. 2024, section 2.1).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]


def encode(state: State, pixels: Tensor) -> Tensor:
    """Codes (B, rows * columns) of pixels (B, 3, H, W) in [-1, 1]."""
    h = convolved(state, "encoder.conv_in", pixels, padding=1)
    levels = count(state, "encoder.conv_blocks.{}.res.0.conv1.weight")
    for level in range(levels):
        h = residual_blocks(state, f"encoder.conv_blocks.{level}", h)
        if level < levels - 1:  # one column and one row of zeros, at the right and below
            wider = F.pad(h, (0, 1, 0, 1))
            h = convolved(state, f"encoder.conv_blocks.{level}.downsample.conv", wider, stride=2)
    h = convolved(state, "encoder.conv_out", activated(state, "encoder.norm_out", middle(state, "encoder", h)), 1)
    latents = convolved(state, "quant_conv", h).flatten(2).transpose(1, 2)
    return (unit(latents) @ unit(state["quantize.embedding.weight"]).T).argmax(-1)


def decode(state: State, codes: Tensor) -> Tensor:
    """Pixels (B, 3, H, W) in about [-1, 1] of the codes (B, side²) of square images."""
    side = math.isqrt(codes.shape[1])
    latents = unit(state["quantize.embedding.weight"])[codes].transpose(1, 2).unflatten(2, (side, side))
    h = convolved(state, "decoder.conv_in", convolved(state, "post_quant_conv", latents), padding=1)
    h = middle(state, "decoder", h)
    levels = count(state, "decoder.conv_blocks.{}.res.0.conv1.weight")
    for level in range(levels):
        h = residual_blocks(state, f"decoder.conv_blocks.{level}", h)
        if level < levels - 1:
            doubled = h.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
            h = convolved(state, f"decoder.conv_blocks.{level}.upsample.conv", doubled, padding=1)
    return convolved(state, "decoder.conv_out", activated(state, "decoder.norm_out", h), padding=1)


def middle(state: State, at: str, x: Tensor) -> Tensor:
    """A residual block, attention, a residual block."""
    return residual_block(state, f"{at}.mid.2", attended(state, f"{at}.mid.1", residual_block(state, f"{at}.mid.0", x)))


def residual_blocks(state: State, at: str, x: Tensor) -> Tensor:
    """The residual blocks of a level, each followed by attention where the level has it."""
    for index in range(count(state, at + ".res.{}.conv1.weight")):
        x = residual_block(state, f"{at}.res.{index}", x)
        if f"{at}.attn.{index}.q.weight" in state:
            x = attended(state, f"{at}.attn.{index}", x)
    return x


def residual_block(state: State, at: str, x: Tensor) -> Tensor:
    """x + two convolutions; where the channels change, x goes through one of a single pixel."""
    h = convolved(state, at + ".conv1", activated(state, at + ".norm1", x), padding=1)
    h = convolved(state, at + ".conv2", activated(state, at + ".norm2", h), padding=1)
    return h + (convolved(state, at + ".nin_shortcut", x) if f"{at}.nin_shortcut.weight" in state else x)


def attended(state: State, at: str, x: Tensor) -> Tensor:
    """x + attention of one head over all pixels."""
    h = normed(state, at + ".norm", x)
    query, key, value = (convolved(state, f"{at}.{name}", h).flatten(2) for name in ("q", "k", "v"))
    weights = torch.softmax(query.transpose(1, 2) @ key / math.sqrt(x.shape[1]), dim=-1)
    return x + convolved(state, at + ".proj_out", (value @ weights.transpose(1, 2)).reshape(x.shape))


def activated(state: State, at: str, x: Tensor) -> Tensor:
    """h sigmoid(h) of the normalised x."""
    h = normed(state, at, x)
    return h * torch.sigmoid(h)


def normed(state: State, at: str, x: Tensor) -> Tensor:
    """Group normalisation in 32 groups."""
    return F.group_norm(x, 32, state[at + ".weight"], state[at + ".bias"], eps=1e-6)


def convolved(state: State, at: str, x: Tensor, padding: int = 0, stride: int = 1) -> Tensor:
    """The convolution with a bias that lies at `at`."""
    return F.conv2d(x, state[at + ".weight"], state[at + ".bias"], padding=padding, stride=stride)


def unit(x: Tensor) -> Tensor:
    """Vectors of the last axis, of length 1."""
    return x / x.norm(dim=-1, keepdim=True)


def count(state: State, name: str) -> int:
    """How many tensors there are of this name with 0, 1, ... in the place of {}."""
    found = 0
    while name.format(found) in state:
        found += 1
    return found
