"""Image files to and from tensors of bytes (Pillow): reading, writing, and many pictures in a grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from stages.errors import SourceError, reason_of

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of the names of image files, in either case."""
BORDER = 2
"""White pixels between the pictures of a grid."""


def pictures_in(folder: Path) -> list[Path]:
    """Image files in a folder and those inside it, sorted by path."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def find_pictures(folder: Path) -> list[Path]:
    """`pictures_in` a folder; raises SourceError where there is none."""
    found = pictures_in(folder)
    if not found:
        raise SourceError(
            f"{folder}: expected image files ({', '.join(SUFFIXES)}) in it, got none: give another folder"
        )
    return found


def read_picture(path: Path) -> Tensor:
    """An image file's pixels as RGB, uint8 (3, height, width); raises SourceError if it cannot be read."""
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise SourceError(
            f"{path} cannot be read as an image ({reason_of(error)}): repair it, or take it out"
        ) from None
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def cropped(pixels: Tensor, side: int) -> Tensor:
    """The centre of RGB pixels, uint8 (3, height, width), as (3, side, side); a picture of that size is not touched.

    The shorter side is halved by averaging while it is at least twice `side`, then scaled to `side` by bicubic
    interpolation, and the middle of the longer side is taken: as ADM (Dhariwal and Nichol 2021, `center_crop_arr` of
    its code) and LlamaGen prepare the images that they train on.
    """
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    while min(image.size) >= 2 * side:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = side / min(image.size)
    if scale != 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    middle = np.array(image.crop((left, top, left + side, top + side)))
    return torch.from_numpy(middle).permute(2, 0, 1).contiguous()


def write_picture(path: Path, pixels: Tensor) -> None:
    """Write RGB pixels, uint8 (3, height, width), as a PNG file."""
    Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy()).save(path, format="PNG")


def in_grid(pictures: Tensor, columns: int) -> Tensor:
    """Pictures (n, 3, height, width) in rows of `columns` on white, as one of uint8 (3, ...)."""
    count, _, height, width = pictures.shape
    rows = -(-count // columns)
    size = (rows * (height + BORDER) - BORDER, columns * (width + BORDER) - BORDER)
    grid = torch.full((3, *size), 255, dtype=torch.uint8)
    for index, picture in enumerate(pictures):
        top, left = index // columns * (height + BORDER), index % columns * (width + BORDER)
        grid[:, top : top + height, left : left + width] = picture
    return grid
