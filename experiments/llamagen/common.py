"""What this experiment's stages share: settings of a set, its folders, pictures in folders of classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stages.models.imaging.pictures import read_picture, write_picture
from stages.params.yamlfile import read_yaml

DATA, RESULTS = Path("data"), Path("results")
Settings = dict[str, Any]


def settings_of(name: str) -> Settings:
    """The settings of a set in params.yaml."""
    settings: Settings = read_yaml(Path("params.yaml"))["sets"][name]
    return settings


def folder_of(name: str) -> Path:
    """Where a set's images, networks and workspaces lie."""
    return DATA / name


def save_images(folder: Path, images: Tensor, labels: Tensor) -> None:
    """Write uint8 images (n, 3, height, width) as folder/<class>/<number>.png."""
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        path = folder / f"{label:03}" / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_picture(path, image)


def load_images(folder: Path) -> tuple[Tensor, Tensor]:
    """The images uint8 (n, 3, height, width) and labels (n,) that `save_images` wrote, by class and number."""
    paths = sorted(folder.glob("*/*.png"))
    images = torch.stack([read_picture(path) for path in paths])
    return images, torch.tensor([int(path.parent.name) for path in paths])


def training_images(name: str) -> tuple[Tensor, Tensor]:
    """The training images uint8 (n, 3, height, width) of a set and their labels (n,)."""
    part = load_file(folder_of(name) / "images.safetensors")
    return part["images"], part["labels"]


def results_of(name: str) -> Path:
    """Where a set's committed results lie; made where it lacks."""
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def warm_cosine(step: int, steps: int, warm: int = 50) -> float:
    """A factor of the learning rate: up in a straight line, down along a cosine."""
    return min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * min(step / steps, 1.0)))


def scaled(images: Tensor) -> Tensor:
    """uint8 images as floats in [-1, 1]."""
    return (images.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
