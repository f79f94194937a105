"""Chooses the images of an image model's calibration and evaluation: classes to draw, or files of a folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from stages.artifacts.images import ImageFacts
from stages.artifacts.places import from_project
from stages.errors import ParameterError, SourceError
from stages.models.imaging.pictures import SUFFIXES, pictures_in
from stages.models.loading.compute import device_of
from stages.params.fetching import Fetch, Images
from stages.params.image_sources import FolderImages, GeneratedImages
from stages.params.ranges import resolve_numbers
from stages.sources.reading import explain_unreadable


@dataclass(frozen=True)
class ChosenImages:
    """Images in order, classes in turns: the label of each, and its file where it is not to be generated.

    place: the parameter that names the source, for messages; name: of the images, in reports and protocols.
    """

    source: Images
    place: str
    name: str
    labels: Sequence[int]
    files: Sequence[Path]


def choose_images(source: Images, place: str, facts: ImageFacts) -> ChosenImages:
    """Raises ParameterError for classes or images that there are not, SourceError for a folder that cannot be read."""
    if isinstance(source, GeneratedImages):
        return _generated(source, place, facts)
    with explain_unreadable(place):
        return _in_folder(source, place, facts)


def check_images(settings: Fetch) -> None:
    """What can be told of sources of images before the model is there.

    Raises SourceError for a folder that is missing, ParameterError for a device that is not there.
    """
    for name, source in (("calibration", settings.calibration), ("evaluation", settings.evaluation)):
        if isinstance(source, Images):
            device_of(source.device, f"fetch.{name}.device")
        if isinstance(source, FolderImages) and not from_project(source.path).is_dir():
            missing = from_project(source.path)
            raise SourceError(f"fetch.{name}.path: {missing} is not there: expected a folder with one for each class")


def _generated(source: GeneratedImages, place: str, facts: ImageFacts) -> ChosenImages:
    try:
        classes = resolve_numbers(source.classes or (), facts.classes) or list(range(facts.classes))
    except ValueError as error:
        raise ParameterError(f"{place}.classes: {error}") from None
    if source.guided_codes is not None and source.guided_codes > facts.codes:
        raise ParameterError(
            f"{place}.guided_codes: expected at most {facts.codes}, the codes of an image, got {source.guided_codes}: "
            "null guides all"
        )
    name = f"images drawn by the model, {source.images} of each of {len(classes)} classes, seed {source.seed}"
    return ChosenImages(source, place, name, classes * source.images, ())


def _in_folder(source: FolderImages, place: str, facts: ImageFacts) -> ChosenImages:
    folder = from_project(source.path)
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(folders) != facts.classes:
        raise ParameterError(
            f"{place}.path: {folder} holds {len(folders)} folders, expected {facts.classes}, one for each class of the "
            "model, in the order of the classes: leave those of classes without images empty"
        )
    of_class = [_chosen(source, place, path, label) for label, path in enumerate(folders)]
    turns = chain.from_iterable(zip_longest(*of_class))
    pairs = [pair for pair in turns if pair is not None]
    if not pairs:
        kinds = ", ".join(SUFFIXES)
        raise SourceError(f"{place}.path: expected image files ({kinds}) in the folders of {folder}, got none")
    name = folder.name if source.images is None else f"{folder.name} images {source.images} of each class"
    return ChosenImages(source, place, name, [label for label, _ in pairs], [path for _, path in pairs])


def _chosen(source: FolderImages, place: str, folder: Path, label: int) -> list[tuple[int, Path]]:
    """Label and file of the images of one class; raises ParameterError where a class with images has too few."""
    files = pictures_in(folder)
    if source.shuffle is not None:
        random.Random(f"{source.shuffle} {label}").shuffle(files)
    if source.images is not None and files:
        if source.images.last >= len(files):
            raise ParameterError(
                f"{place}.images: expected a last one of at most {len(files) - 1}, since {folder} holds {len(files)} "
                f"images, got {source.images}"
            )
        files = files[source.images.first : source.images.last + 1]
    return [(label, path) for path in files]
