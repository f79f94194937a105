"""Labelled images of a set: procedural shapes, or scikit-learn's digits; training, validation and test parts.

    python images.py shapes

Writes data/<set>/images.safetensors (training) and data/<set>/images/<part>/<class>/<number>.png (validation and test).
Run in this folder. Shapes are drawn from the inequalities of their insides on a grid three times as fine: ten classes,
each at random places, sizes, turns and colours, before a grey that is lighter on one side. Digits are scaled by bicubic
interpolation.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable

import torch
from common import Settings, folder_of, save_images, settings_of
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

FINE = 3
"""Samples a pixel and side, averaged."""
BATCH = 256
"""Shapes that are drawn together."""
HUES = 3
"""Colours of shapes, each a little off."""
CLASSES = ("disc", "ring", "square", "frame", "triangle", "plus", "bar", "crescent", "stripes", "dots")


def main(name: str) -> None:
    """Draw or load the parts and write them."""
    settings = settings_of(name)["images"]
    parts = {"shapes": shapes, "digits": digits}[name](settings)
    folder = folder_of(name)
    shutil.rmtree(folder / "images", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in parts.items():
        print(f"{name}: {len(images)} images to {part}")
        if part == "train":
            save_file({"images": images, "labels": labels}, folder / "images.safetensors")
        else:
            save_images(folder / "images" / part, images, labels)


def shapes(settings: Settings) -> dict[str, tuple[Tensor, Tensor]]:
    """Parts of shapes: images uint8 (n, 3, size, size) and labels (n,), as many of each class."""
    generator = torch.Generator().manual_seed(settings["seed"])
    parts = {}
    for part in ("train", "validation", "test"):
        labels = torch.arange(settings[part]) % len(CLASSES)
        drawn = [draw_shapes(one, settings["size"], generator) for one in labels.split(BATCH)]
        parts[part] = torch.cat(drawn), labels
    return parts


def draw_shapes(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """One shape of each label (n,) on a background: uint8 (n, 3, size, size)."""
    count = len(labels)

    def random(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *(shape or (1, 1)), generator=generator)

    at = (torch.arange(size * FINE) + 0.5) / (size * FINE) * 2 - 1
    y, x = torch.meshgrid(at, at, indexing="ij")
    radius, turn = random(0.6, 0.85), random(-0.25, 0.25)
    x, y = x - (1 - radius) * random(-0.8, 0.8), y - (1 - radius) * random(-0.8, 0.8)
    u, v = (x * turn.cos() + y * turn.sin()) / radius, (y * turn.cos() - x * turn.sin()) / radius
    inside = torch.stack([INSIDE[int(label)](*pair) for label, *pair in zip(labels, u, v, strict=True)])
    cover = avg_pool2d(inside[:, None].float(), FINE)

    slope, coarse = random(0, 2 * math.pi), torch.linspace(-1, 1, size)
    back = random(0.1, 0.35) * (1 + 0.5 * (coarse * slope.cos() + coarse[:, None] * slope.sin()))
    hue = (torch.randint(HUES, (count,), generator=generator) + random(-0.15, 0.15, 1)[:, 0]) / HUES
    colour = bright(hue)[:, :, None, None]
    return ((back[:, None] * (1 - cover) + colour * cover) * 255).round().to(torch.uint8)


def bright(hue: Tensor) -> Tensor:
    """Light colours (n, 3) of hues (n,), with a period of 1."""
    phases = hue[:, None] + torch.tensor([0.0, 1 / 3, 2 / 3])
    return 0.65 + 0.35 * (2 * math.pi * phases).cos()


def _disc(u: Tensor, v: Tensor) -> Tensor:
    return u**2 + v**2 < 1


def _square(u: Tensor, v: Tensor, side: float = 0.85) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) < side


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    return (v < 0.75) & (v > 3**0.5 * u.abs() - 0.95)


def _dots(u: Tensor, v: Tensor) -> Tensor:
    return ((u.abs() - 0.55) ** 2 + (v.abs() - 0.55) ** 2) < 0.17


INSIDE: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _disc,
    lambda u, v: _disc(u, v) & ~_disc(u / 0.55, v / 0.55),
    _square,
    lambda u, v: _square(u, v) & ~_square(u, v, 0.5),
    _triangle,
    lambda u, v: _square(u, v, 1) & (torch.minimum(u.abs(), v.abs()) < 0.3),
    lambda u, v: (u.abs() < 1) & (v.abs() < 0.3),
    lambda u, v: _disc(u, v) & ~_disc((u - 0.55) / 0.8, v / 0.8),
    lambda u, v: _square(u, v, 0.95) & ((v + 0.95) % 0.76 < 0.38),
    _dots,
)
"""Whether points (u, v) of the plane, the shape within [-1, 1]², are inside the shape of a class."""


def digits(settings: Settings) -> dict[str, tuple[Tensor, Tensor]]:
    """Parts of scikit-learn's 1,797 digits of 8 x 8 (from UCI), scaled to `size` in grey, shuffled once."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(settings["seed"]))
    small = torch.from_numpy(found.images).float()[order, None] / 16
    size = settings["size"]
    large = interpolate(small, size=(size, size), mode="bicubic", antialias=False).clamp(0, 1)
    images = (large * 255).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
    labels = torch.from_numpy(found.target)[order]
    counts = [settings[part] for part in ("train", "validation", "test")]
    if sum(counts) > len(images):
        raise ValueError(f"sets.digits.images: expected at most {len(images)} images in all, got {sum(counts)}")
    ends = [sum(counts[:at]) for at in range(4)]
    names = zip(("train", "validation", "test"), ends[:-1], ends[1:], strict=True)
    return {part: (images[start:end], labels[start:end]) for part, start, end in names}


if __name__ == "__main__":
    main(sys.argv[1])
