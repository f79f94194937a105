"""Random LlamaGen weights in the layout of the public checkpoints, as tiny as the networks allow."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.models.importing.llamagen import convert
from stages.models.loading.load import load_model
from tests.reference.llamagen import swiglu_width

State = dict[str, Tensor]
LAYERS, WIDTH, HEADS, CLASSES, CODES, GRID = 2, 32, 4, 5, 64, 4
"""Sizes of the transformer: heads of 8 dimensions, so that rows and columns have two pairs each."""

SIDE = 8
"""Pixels on a side of an image."""

CHANNELS, MULTIPLIERS, LATENT, CODE_WIDTH = 32, (1, 2), 16, 8
"""Sizes of the tokenizer: group normalisation wants 32 channels; two levels: images are twice as wide as the grid."""


def public_transformer(key_value_heads: int = HEADS, dtype: torch.dtype = torch.float32, seed: int = 0) -> State:
    """Tensors of a class-conditional transformer."""
    size, channels = WIDTH // HEADS, swiglu_width(WIDTH)
    shapes = {
        "cls_embedding.embedding_table.weight": (CLASSES + 1, WIDTH),
        "tok_embeddings.weight": (CODES, WIDTH),
        "norm.weight": (WIDTH,),
        "output.weight": (CODES, WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"layers.{layer}.attention.wqkv.weight": ((HEADS + 2 * key_value_heads) * size, WIDTH),
            f"layers.{layer}.attention.wo.weight": (WIDTH, WIDTH),
            f"layers.{layer}.feed_forward.w1.weight": (channels, WIDTH),
            f"layers.{layer}.feed_forward.w2.weight": (WIDTH, channels),
            f"layers.{layer}.feed_forward.w3.weight": (channels, WIDTH),
            f"layers.{layer}.attention_norm.weight": (WIDTH,),
            f"layers.{layer}.ffn_norm.weight": (WIDTH,),
        }
    return _random(shapes, dtype, seed)


def public_tokenizer(dtype: torch.dtype = torch.float32, seed: int = 0) -> State:
    """Tensors of a VQ tokenizer, the codebook not normalised, and the buffer that training keeps."""
    first, last = CHANNELS * MULTIPLIERS[0], CHANNELS * MULTIPLIERS[-1]
    shapes = dict[str, tuple[int, ...]]()
    shapes |= _convolution("encoder.conv_in", 3, CHANNELS) | _convolution("decoder.conv_in", LATENT, last)
    for level, (inputs, outputs) in enumerate([(CHANNELS, first), (first, last)]):
        shapes |= _level(f"encoder.conv_blocks.{level}", inputs, outputs, 2, level == 1)
    for level, (inputs, outputs) in enumerate([(last, last), (last, first)]):
        shapes |= _level(f"decoder.conv_blocks.{level}", inputs, outputs, 3, level == 0)
    shapes |= _convolution("encoder.conv_blocks.0.downsample.conv", first, first)
    shapes |= _convolution("decoder.conv_blocks.0.upsample.conv", last, last)
    for side, outputs, final in (("encoder", last, LATENT), ("decoder", first, 3)):
        shapes |= _residual(f"{side}.mid.0", last, last) | _residual(f"{side}.mid.2", last, last)
        shapes |= _attention(f"{side}.mid.1", last) | _norm(f"{side}.norm_out", outputs)
        shapes |= _convolution(f"{side}.conv_out", outputs, final)
    shapes |= _convolution("quant_conv", LATENT, CODE_WIDTH, 1) | _convolution("post_quant_conv", CODE_WIDTH, LATENT, 1)
    state = _random(shapes | {"quantize.embedding.weight": (CODES, CODE_WIDTH)}, dtype, seed)
    return state | {"quantize.codebook_used": torch.zeros(65536)}


def save_public(folder: Path, transformer: State | None = None, tokenizer: State | None = None) -> tuple[Path, Path]:
    """Files as LlamaGen publishes them."""
    paths = folder / "c2i.pt", folder / "vq.pt"
    torch.save({"model": transformer or public_transformer()}, paths[0])
    torch.save({"model": tokenizer or public_tokenizer()}, paths[1])
    return paths


def converted(folder: Path, transformer: State | None = None, tokenizer: State | None = None) -> Path:
    """The folder of a converted model."""
    convert(*save_public(folder, transformer, tokenizer), folder / "converted", SIDE, HEADS, CLASSES)
    return folder / "converted"


def converted_model(transformer: State, folder: Path) -> PreTrainedModel:
    """Our class with the tensors of a public transformer."""
    return load_model(converted(folder, transformer), device="cpu")


def _level(at: str, inputs: int, outputs: int, blocks: int, attended: bool) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    for index in range(blocks):
        shapes |= _residual(f"{at}.res.{index}", outputs if index else inputs, outputs)
        shapes |= _attention(f"{at}.attn.{index}", outputs) if attended else {}
    return shapes


def _residual(at: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    shapes = _norm(f"{at}.norm1", inputs) | _convolution(f"{at}.conv1", inputs, outputs)
    shapes |= _norm(f"{at}.norm2", outputs) | _convolution(f"{at}.conv2", outputs, outputs)
    return shapes | (_convolution(f"{at}.nin_shortcut", inputs, outputs, 1) if inputs != outputs else {})


def _attention(at: str, channels: int) -> dict[str, tuple[int, ...]]:
    shapes = _norm(f"{at}.norm", channels)
    for name in ("q", "k", "v", "proj_out"):
        shapes |= _convolution(f"{at}.{name}", channels, channels, 1)
    return shapes


def _norm(at: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {f"{at}.weight": (channels,), f"{at}.bias": (channels,)}


def _convolution(at: str, inputs: int, outputs: int, size: int = 3) -> dict[str, tuple[int, ...]]:
    return {f"{at}.weight": (outputs, inputs, size, size), f"{at}.bias": (outputs,)}


def _random(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, seed: int) -> State:
    """Weights that keep the size of what goes through them; scales of norms about 1, biases about 0."""
    generator = torch.Generator().manual_seed(seed)
    state = State()
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            inputs = 1.0 if "embed" in name else float(torch.tensor(shape[1:]).prod())
            state[name] = (values / inputs**0.5).to(dtype)
        else:
            state[name] = ((1.0 if name.endswith("weight") else 0.0) + 0.1 * values).to(dtype)
    return state
