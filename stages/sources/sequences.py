"""Calibration and evaluation of an image model: images as token ids, sequence after sequence, with their facts."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.artifacts.images import ImageFacts
from stages.artifacts.tokens import write_tokens
from stages.errors import ParameterError, SourceError
from stages.params.fetching import Fetch, Images
from stages.runtime.stage import StageRun
from stages.sources.codes import codes_of
from stages.sources.overlap import check_unseen
from stages.sources.pictures import ChosenImages, choose_images

log = logging.getLogger("secateur")


def check_sources(settings: Fetch, images: ImageFacts | None) -> None:
    """Raise ParameterError for sources of text where the model is one of images, or the other way round.

    images: sizes of an image model; None for one of text.
    """
    if settings.of_images != (images is not None):
        kind, of_model, known = "text", "images", "images or generated"
        if settings.of_images:
            kind, of_model, known = "images", "text", "hub, local or wheel"
        raise ParameterError(
            f"fetch.calibration.source: expected {known}, since fetch.model is a model of {of_model}, got "
            f"{settings.calibration.source}, a source of {kind}: take sources that fit it, or another model"
        )


def write_images(
    run: StageRun, folder: Path, model_folder: Path, images: ImageFacts, vocabulary: int
) -> dict[str, dict[str, Any]]:
    """Write the token ids of calibration and evaluation images, sequence after sequence; gives the facts of each.

    model_folder: of the image model, with its manifest; vocabulary: token ids that it has. Raises ParameterError,
    SourceError where images cannot be had, are too few, or where evaluation repeats calibration.
    """
    settings, facts, codes = run.params.fetch, dict[str, dict[str, Any]](), dict[str, Tensor]()
    sources = {"calibration": settings.calibration, "evaluation": settings.evaluation}
    chosen = {
        name: choose_images(source, f"fetch.{name}", images)
        for name, source in sources.items()
        if isinstance(source, Images)
    }
    _check_enough(chosen["calibration"], run.params.calibration.sequences)
    for name, one in chosen.items():
        codes[name] = codes_of(run, one, model_folder)
        facts[name] = write_sequences(folder, name, one, codes[name], images, vocabulary)
    share = check_unseen(codes["calibration"], codes["evaluation"], settings.max_overlap)
    facts["evaluation"]["overlap"] = round(share, 6)
    return facts


def write_sequences(
    folder: Path, name: str, chosen: ChosenImages, codes: Tensor, images: ImageFacts, vocabulary: int
) -> dict[str, Any]:
    """Write <name>.parquet (name: calibration or evaluation), and give its facts; codes (images, codes)."""
    null_class = vocabulary - 1
    labels = null_class - images.classes + torch.tensor(list(chosen.labels))
    halves = [labels, torch.full_like(labels, null_class)] if chosen.source.unconditional else [labels]
    sequences = torch.stack([torch.cat((half[:, None], codes), 1) for half in halves], 1)
    ids = sequences.flatten().numpy().astype(np.int32)
    facts = {
        "name": chosen.name,
        "source": chosen.source.model_dump(mode="json"),
        "sha256": hashlib.sha256(ids.tobytes()).hexdigest(),
        "images": len(codes),
        "sequence": images.sequence,
        "halves": len(halves),
        "tokens": len(ids),
    }
    write_tokens(folder, name, ids, facts)
    log.info("%s: %d tokens in %d sequences, %s", name, len(ids), len(ids) // images.sequence, chosen.name)
    return facts


def _check_enough(chosen: ChosenImages, wanted: int) -> None:
    """Raise SourceError where calibration images make fewer sequences than `wanted` (calibration.sequences)."""
    sequences = len(chosen.labels) * (2 if chosen.source.unconditional else 1)
    if sequences < wanted:
        raise SourceError(
            f"{chosen.place}: its {len(chosen.labels)} images make {sequences} sequences, expected at least {wanted} "
            "(calibration.sequences): use more images, or lower that setting"
        )
