"""Writes a model from any source as a Hugging Face folder of safetensors: data/model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from stages.artifacts.atomic import MODE
from stages.errors import ArchitectureError, SourceError
from stages.models.importing.gguf import dequantise
from stages.models.importing.normalise import copy_weights, rewrite, settle_dtype, survey
from stages.models.loading.checkpoint import Checkpoint
from stages.models.loading.compute import DTYPES
from stages.models.streaming.coverage import coverage_of
from stages.models.streaming.trial import check_walk
from stages.params.fetching import Model
from stages.params.pruning import Solve
from stages.runtime.progress import progress
from stages.sources.checkpoints import copy_companions, open_source
from stages.sources.image_models import check_image_model, copy_image_parts, is_image_model
from stages.sources.reading import explain_unreadable
from stages.sources.refusals import check_finite, check_folder

log = logging.getLogger("secateur")


def write_model(source: Model, target: Path) -> dict[str, Any]:
    """Write the model to `target` and give the facts for its manifest; raises SourceError.

    Nothing of the checkpoint is loaded where its tensors can be copied as they are.
    """
    trusted = getattr(source, "trust_remote_code", False)
    dtype = None if source.dtype == "auto" else DTYPES[source.dtype]
    with explain_unreadable("fetch.model"), open_source(source) as checkpoint:
        if checkpoint.path.is_file():
            log.info("dequantising %s", checkpoint.path.name)
            dequantise(checkpoint.path, target, dtype or torch.float32)
        else:
            check_folder(checkpoint.path)
            _write_folder(checkpoint.path, target, dtype, trusted)
    for path in filter(Path.is_file, target.rglob("*")):
        path.chmod(MODE)  # safetensors' own files are for their owner only
    stored = settle_dtype(target)
    check_finite(target)
    seen = survey(target, trusted)
    _try_walk(target, trusted)
    images = {"images": check_image_model(target)._asdict()} if is_image_model(target) else {}
    return {
        "source": source.model_dump(mode="json"),
        **checkpoint.facts,
        "architecture": seen.architecture,
        "parameters": seen.parameters,
        "vocabulary": seen.vocabulary,
        "positions": seen.positions,
        "dtype": stored,
        **images,
    }


def _try_walk(folder: Path, trusted: bool) -> None:
    """Raise SourceError unless the model's blocks can be walked; warn where linears cover too little of them."""
    try:
        coverage = coverage_of(check_walk(folder, trusted))
    except ArchitectureError as error:
        raise SourceError(f"fetch.model: {error}") from error
    if 1 - coverage.share > Solve.model_fields["max_uncovered"].default:
        log.warning("%s: see solve.max_uncovered", coverage.described())


def _write_folder(source: Path, target: Path, dtype: torch.dtype | None, trusted: bool) -> None:
    if is_image_model(source):
        copy_companions(source, target, code=False)
        copy_image_parts(source, target)
    else:
        copy_companions(source, target, trusted)
    if survey(source, trusted).unstored:
        log.info("tensors of the checkpoint are merged on loading: loading the whole model")
        rewrite(source, target, dtype, trusted)
        return
    size = sum((source / name).stat().st_size for name in set(Checkpoint(source).files.values()))
    with progress(total=size, desc="copy the weights", unit="B", unit_scale=True) as bar:
        copy_weights(source, target, dtype, bar.update)
