"""Samples an image model and measures the samples: figures, the protocol in words, and what is kept to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.places import from_project
from stages.artifacts.tensorfile import write_tensors
from stages.errors import ParameterError
from stages.measuring.images.figures import NAMES, NO_FEATURES, figures_of, left_out_of
from stages.measuring.images.protocol import images_in_words
from stages.measuring.images.reference import load_reference
from stages.measuring.images.samples import Group, labels_of, stored_samples
from stages.measuring.images.stored_features import decoded, features_of_group, read_features
from stages.models.imaging.features import FeatureNetwork, load_feature_network
from stages.models.imaging.pictures import in_grid, write_picture
from stages.models.imaging.tokenizer import image_side, load_image_tokenizer
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun

WIDEST = 16
"""Most classes that have a column each in the picture of samples."""


@dataclass(frozen=True)
class MeasuredImages:
    """Samples and what was measured of them.

    figures: count and metrics by name, None for one that is left out; left_out: the reasons; words: the protocol.
    codes: (n, codes); labels: (n,); picture: the first samples in a grid, bytes (3, ...), None where none are shown.
    """

    figures: Mapping[str, float | None]
    left_out: Mapping[str, str]
    words: str
    codes: Tensor
    labels: Tensor
    picture: Tensor | None

    def write(self, folder: Path) -> None:
        """Write samples.safetensors (codes, labels; int32), and samples.png if there is a picture."""
        tensors = {"codes": self.codes.to(torch.int32), "labels": self.labels.to(torch.int32)}
        write_tensors(folder / "samples.safetensors", tensors)
        if self.picture is not None:
            write_picture(folder / "samples.png", self.picture)


def measure_images(run: StageRun, model: Any, files: Mapping[str, str], folder: Path) -> MeasuredImages | None:
    """Draw evaluate.images.count samples from the image model in `folder`, and measure them; None where count is 0.

    files: sha256 of its files by name.
    """
    settings, device = run.params.evaluate.images, run.params.compute.device
    if not settings.count:
        return None
    labels = labels_of(settings, model.config.num_classes)
    tokenizer = load_image_tokenizer(folder, device)
    network, reference = _network(settings.features, device), None
    if network is not None and settings.reference is not None:
        side = settings.size or image_side(tokenizer)
        reference = load_reference(run, network, from_project(settings.reference), side)
    groups, paths = list[Group](), list[Path]()
    with progress(total=settings.count, desc="images", unit="image") as bar:
        for index, group in enumerate(stored_samples(run, model, files, labels)):
            groups.append(group)
            if network is not None:
                paths.append(features_of_group(run, network, tokenizer, files, index, group))
            bar.update(len(group.labels))
    if network is None:
        figures, left_out = dict[str, float](), left_out_of(NAMES, NO_FEATURES)
    else:
        same = network.classes == model.config.num_classes
        figures, left_out = figures_of(read_features(paths), labels, same, reference)
    return MeasuredImages(
        {"count": len(labels)} | {name: figures.get(name) for name in NAMES},
        left_out,
        images_in_words(settings, labels, str(model.dtype), network, reference),
        torch.cat([group.codes() for group in groups]),
        labels,
        _picture(tokenizer, groups, settings.shown),
    )


def _network(path: Path | None, device: str) -> FeatureNetwork | None:
    if path is None:
        return None
    if find_spec("torchmetrics") is None:
        raise ParameterError(
            "evaluate.images.features: metrics need torchmetrics, which is not installed here: "
            "pip install 'secateur[images]', or set it to null"
        )
    return load_feature_network(from_project(path), device)


def _picture(tokenizer: Any, groups: list[Group], shown: int) -> Tensor | None:
    """The first samples, a column a class where there are few, else as square as can be."""
    if not shown:
        return None
    images, labels = list[Tensor](), list[int]()
    for group in groups:
        if len(labels) >= shown:
            break
        images.append(decoded(tokenizer, group))
        labels += group.labels.tolist()
    classes = len({label for group in groups for label in group.labels.tolist()})
    columns = classes if 1 < classes <= min(WIDEST, shown) else math.ceil(math.sqrt(shown))
    return in_grid(torch.cat(images)[:shown].cpu(), columns)
