"""Whether a model is one of images, and of how many classes and codes: `images` in the manifest of data/model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ImageFacts(NamedTuple):
    """Sizes of an image model: its classes, without "no class"; codes of an image; tokens of its sequence, 1 + codes.

    A sequence begins with a class, `vocabulary - classes - 1 + label`, where `vocabulary` counts all token ids.
    """

    classes: int
    codes: int
    sequence: int


def images_of(manifest: Mapping[str, Any]) -> ImageFacts | None:
    """Sizes of the image model with this manifest (of data/model, or `source` in a pruning manifest); None: of text."""
    facts = manifest.get("images")
    return None if facts is None else ImageFacts(*(int(facts[name]) for name in ImageFacts._fields))
