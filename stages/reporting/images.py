"""Samples of an image model for the report: the dense and the pruned model's figures, their pictures as data URIs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

FIGURES = (
    ("fid", "FID", "lower", 2),
    ("sfid", "sFID", "lower", 2),
    ("inception_score", "Inception score", "higher", 2),
    ("precision", "precision", "higher", 3),
    ("recall", "recall", "higher", 3),
    ("accuracy", "classified as their class", "higher", 3),
)
"""Names in `images` of metrics/<model>.json, their labels, which is better, and decimals."""


SMALL = 480
"""Pixels that a picture has on the page, about."""


def images_facts(metrics: Mapping[str, Any], protocol: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the report tells of samples, None for text models.

    `count`: 0 where no image was drawn; `protocol`: how they were measured; `rows`: of the figures that both models
    have; `left_out`: of the others, labels by the reason.
    metrics, protocol: of `Results`.
    """
    if "sequence" not in protocol["text"]:
        return None
    dense, pruned = (metrics[model].get("images") or {} for model in ("dense", "pruned"))
    rows = [
        {"key": key, "figure": label, "better": better, "digits": digits, **_values(dense[key], pruned[key])}
        for key, label, better, digits in FIGURES
        if dense.get(key) is not None and pruned.get(key) is not None
    ]
    labels = {key: label for key, label, *_ in FIGURES}
    left_out: dict[str, list[str]] = {}
    for key, reason in protocol["images_left_out"].items():
        left_out.setdefault(reason, []).append(labels[key])
    told = {"count": pruned.get("count", 0), "protocol": protocol["images"]}
    return {**told, "rows": rows, "left_out": left_out}


def _values(dense: float, pruned: float) -> dict[str, float]:
    return {"dense": dense, "pruned": pruned, "difference": pruned - dense}


def embedded(png: bytes) -> dict[str, Any]:
    """A PNG file for an `img` element: its `source`, an address that loads nothing; whether it is `small`.

    A small picture is shown larger than it is, so that its pixels should stay squares.
    """
    width = int.from_bytes(png[16:20], "big")  # of the first chunk, IHDR
    return {"source": f"data:image/png;base64,{b64encode(png).decode('ascii')}", "small": width < SMALL}
