"""Figures of sampled images: each metric, or the reason for which it is left out."""

from __future__ import annotations

import logging
import math

from torch import Tensor

from stages.errors import NotFiniteError, ParameterError
from stages.measuring.images.metrics import (
    NEIGHBOURS,
    Moments,
    frechet_distance,
    inception_score,
    precision_recall,
)
from stages.measuring.images.reference import Reference
from stages.models.imaging.features import Features

NAMES = ("accuracy", "fid", "sfid", "inception_score", "precision", "recall")
NO_FEATURES = "evaluate.images.features is null"
NO_REFERENCE = "evaluate.images.reference is null"

log = logging.getLogger("secateur")


def left_out_of(names: tuple[str, ...], reason: str) -> dict[str, str]:
    """One reason for several metrics."""
    return dict.fromkeys(names, reason)


def figures_of(
    samples: Features, labels: Tensor, same_classes: bool, reference: Reference | None
) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics of samples of classes `labels`, and why others are left out, both by name.

    same_classes: whether the network's classes are the model's. Raises NotFiniteError for a metric that is no number,
    ParameterError for moments of other features than the samples'.
    """
    figures, left_out = {"inception_score": inception_score(samples.logits)}, dict[str, str]()
    if same_classes:
        figures["accuracy"] = float((samples.logits.argmax(1) == labels).double().mean())
    else:
        left_out["accuracy"] = "the classes of the feature network are not the model's"
    if reference is None:
        left_out |= left_out_of(("fid", "sfid", "precision", "recall"), NO_REFERENCE)
    else:
        images = reference.features
        for name, features, against in (
            ("fid", samples.pooled, reference.pooled or (images.pooled if images else None)),
            ("sfid", samples.spatial, reference.spatial or (images.spatial if images else None)),
        ):
            if against is None:
                left_out[name] = "the reference holds no moments of spatial features"
            elif (fewest := min(len(features), _count(against))) < 2:
                left_out[name] = f"a covariance is of two images at least, got {fewest}"
            else:
                figures[name] = _distance(name, features, against)
        _add_precision(figures, left_out, samples, reference)
    for name, value in figures.items():
        if not math.isfinite(value):
            raise NotFiniteError(f"{name} of the sampled images is {value}: their features are not finite")
    return figures, left_out


def _count(reference: Tensor | Moments) -> float:
    return math.inf if isinstance(reference, Moments) else len(reference)


def _distance(name: str, features: Tensor, reference: Tensor | Moments) -> float:
    count, width = features.shape
    other = len(reference.mean) if isinstance(reference, Moments) else reference.shape[1]
    if other != width:
        raise ParameterError(
            f"evaluate.images.reference: its moments are of {other} features, the network has {width} for {name}: give "
            "moments of this network, or a folder of images"
        )
    if (fewest := min(count, _count(reference))) <= width:
        log.warning(
            "%s: %d images are no more than the %d features, so it is too large: compare it with that of as many "
            "images only, or raise evaluate.images.count (ADM takes 50,000)", name, fewest, width
        )  # fmt: skip
    return frechet_distance(features, reference)


def _add_precision(
    figures: dict[str, float], left_out: dict[str, str], samples: Features, reference: Reference
) -> None:
    names = ("precision", "recall")
    if reference.features is None:
        left_out |= left_out_of(names, "the reference holds no images (arr_0), only moments")
        return
    fewest = min(len(samples.pooled), len(reference.features.pooled))
    if fewest <= NEIGHBOURS:
        left_out |= left_out_of(names, f"{NEIGHBOURS} neighbours want {NEIGHBOURS + 1} images, got {fewest}")
        return
    figures |= dict(zip(names, precision_recall(samples.pooled, reference.features.pooled), strict=True))
