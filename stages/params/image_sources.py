"""fetch.calibration and fetch.evaluation of an image model: images that it draws itself, or a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer

from stages.params.base import Device, Positive, Section
from stages.params.ranges import Numbers, Range, range_of
from stages.params.sampling import SamplingSettings


def _images(value: Any) -> Any:
    """A range of images of each class, counted from 0; a number takes the first ones. Raises ValueError."""
    if type(value) is int:
        if value < 1:
            raise ValueError(f"expected at least 1 image of each class, got {value}")
        return Range(0, value - 1)
    chosen = range_of(value)
    if min(chosen.first, chosen.last) < 0:
        raise ValueError(f"images of a class are counted from 0, got {chosen}")
    return chosen


class GeneratedImages(SamplingSettings):
    """Images with source `generated`: drawn by the dense model, class after class in turns.

    unconditional: every image is stored twice, after its class and after "no class": both halves of a guided batch.
    """

    source: Literal["generated"]
    images: Positive
    """Of each class."""
    classes: Numbers | None = None
    """Classes that are drawn, `[0, "5-9"]`; None: all of the model's."""
    seed: int = 0
    """Of the draw."""
    batch: Positive = 16
    """Images drawn together: sets peak memory, and the draw depends on it."""
    device: Device = "auto"
    """That the model draws on; auto: a GPU if there is one."""
    unconditional: bool = True


class FolderImages(Section):
    """Images with source `images`: files in a folder that has a folder for each class, in the order of their names.

    unconditional: as of GeneratedImages.
    """

    source: Literal["images"]
    path: Path
    images: Annotated[Range, BeforeValidator(_images), PlainSerializer(str)] | None = None
    """Of each class, after shuffling: a number takes the first, a range such as "100-149" those; None: all."""
    shuffle: int | None = None
    """Seed that shuffles the files of every class; None: the order of their names."""
    device: Device = "auto"
    """That the image tokenizer runs on; auto: a GPU if there is one."""
    unconditional: bool = True
