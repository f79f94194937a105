"""LlamaGen's image tokenizer (VQ-16): images as codes of a codebook, and codes as images.

It is transformers' `JanusVQVAE`, the same convolutional network (Sun et al. 2024, section 2.1). A latent's code is the
nearest row of the codebook, both of length 1. LlamaGen normalises whenever it looks one up, transformers only when it
decodes: the codebook is therefore normalised when it is loaded, and then the nearest row of either is the same.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import JanusVQVAE
from transformers.utils import logging as transformers_logging

from stages.errors import ArtifactError, SourceError, reason_of
from stages.models.loading.compute import device_of, settle_vector_math

FOLDER = "image_tokenizer"
"""Its folder inside the folder of an image model."""

BATCH = 8
"""Images that are computed together: at 384 x 384 pixels a layer of the decoder is 75 MB an image."""


def load_image_tokenizer(folder: Path, device: str = "auto") -> JanusVQVAE:
    """The image tokenizer of the model in `folder`, float32, in evaluation mode.

    device: cpu, cuda, cuda:<n>, or auto for cuda where there is one.

    Only local safetensors files are read. Raises ArtifactError if there is no image tokenizer, or one without all its
    weights.
    """
    settle_vector_math()
    target, place = device_of(device), folder / FOLDER
    if not (place / "config.json").is_file():
        raise ArtifactError(
            f"{place}/config.json is missing: expected the image tokenizer that image models carry: convert or fetch "
            "the model again"
        )
    transformers_logging.disable_progress_bar()
    try:
        tokenizer, report = JanusVQVAE.from_pretrained(
            str(place), dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # transformers and its checks of configurations fail each in their own way
        raise ArtifactError(f"{place} cannot be loaded as an image tokenizer: {reason_of(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ArtifactError(f"{place} has no tensor for {missing[0]}: the weights do not fit its config.json")
    tokenizer.eval().requires_grad_(False)
    codebook = tokenizer.quantize.embedding.weight
    codebook.copy_(F.normalize(codebook, dim=-1))
    return tokenizer.to(target)  # type: ignore[no-any-return]


def image_side(tokenizer: JanusVQVAE) -> int:
    """Pixels on a side of the square images that the tokenizer decodes to."""
    config = tokenizer.config
    return int(config.num_patches * 2 ** (len(config.channel_multiplier) - 1))


@torch.no_grad()
def encode(tokenizer: JanusVQVAE, images: Tensor) -> Tensor:
    """Codes (B, codes), int64, row-major, of uint8 images (B, 3, side, side); on the device of `images`.

    Raises SourceError for images of another size.
    """
    side = image_side(tokenizer)
    if tuple(images.shape[1:]) != (3, side, side) or images.dtype != torch.uint8:
        raise SourceError(
            f"images for the image tokenizer: expected uint8 (3, {side}, {side}), "
            f"got {str(images.dtype).removeprefix('torch.')} {tuple(images.shape[1:])}: crop or resize them"
        )
    codes = images.new_empty((len(images), tokenizer.config.num_patches**2), dtype=torch.int64)
    for start in range(0, len(images), BATCH):
        pixels = images[start : start + BATCH].to(tokenizer.device, tokenizer.dtype) / 127.5 - 1
        found = tokenizer.encode(pixels).image_tokens
        codes[start : start + BATCH] = found.view(len(pixels), -1).to(codes.device)
    return codes


@torch.no_grad()
def decode(tokenizer: JanusVQVAE, codes: Tensor) -> Tensor:
    """uint8 images (B, 3, side, side) of codes (B, codes), row-major; on the device of `codes`.

    Pixels are the nearest ones to those that the network returns, from -1 (0) to 1 (255). Raises SourceError for
    another number of codes, or a code that the codebook lacks.
    """
    side, count = image_side(tokenizer), tokenizer.config.num_patches**2
    if codes.ndim != 2 or codes.shape[1] != count:
        raise SourceError(f"codes of an image: expected (images, {count}), got {tuple(codes.shape)}")
    rows = tokenizer.config.num_embeddings
    if len(codes) and (int(codes.min()) < 0 or int(codes.max()) >= rows):
        raise SourceError(f"codes of an image: expected 0 to {rows - 1}, got {int(codes.min())} to {int(codes.max())}")
    images = torch.empty((len(codes), 3, side, side), dtype=torch.uint8, device=codes.device)
    for start in range(0, len(codes), BATCH):
        pixels = tokenizer.decode(codes[start : start + BATCH].to(tokenizer.device, torch.int64))
        levels = ((pixels + 1) * 127.5).round().clamp(0, 255)
        images[start : start + BATCH] = levels.to(codes.device, torch.uint8)
    return images
