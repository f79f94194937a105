"""Samples of an image model, drawn in groups whose codes are kept in the block store, so that a run can resume."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.code import code_of
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.errors import ParameterError
from stages.models.imaging.sampling import Sampling, sample_codes
from stages.models.loading.compute import compute_facts, synchronize
from stages.params.evaluating import Images
from stages.params.ranges import resolve_numbers
from stages.runtime.blocks.contract import Block
from stages.runtime.stage import StageRun


@dataclass(frozen=True)
class Group:
    """Samples that are drawn together. labels: (n,) classes; path: of their codes in the block store."""

    labels: Tensor
    path: Path

    def codes(self) -> Tensor:
        """Codes of the samples, int64 (n, codes)."""
        return read_tensors(self.path)["codes"].long()


def labels_of(settings: Images, classes: int) -> Tensor:
    """Classes of the samples (count,), int64, in turns; raises ParameterError for one that the model lacks."""
    try:
        chosen = range(classes) if settings.classes is None else resolve_numbers(settings.classes, classes)
    except ValueError as error:
        raise ParameterError(f"evaluate.images.classes: {error}: the model has {classes} classes") from None
    return torch.tensor([chosen[index % len(chosen)] for index in range(settings.count)])


def stored_samples(run: StageRun, model: Any, files: Mapping[str, str], labels: Tensor) -> Iterator[Group]:
    """Draw samples of classes `labels` (n,), evaluate.images.batch at a time; a group comes when it is in the store.

    files: sha256 of the model's files by name.
    """
    settings = run.params.evaluate.images
    sampling = Sampling.of(settings)
    facts = {
        "code": code_of(_write_codes),
        "model": dict(files),
        "sampling": asdict(sampling),
        **compute_facts(model.device, model.dtype, settings.batch),
    }
    for index, group in enumerate(labels.split(settings.batch)):
        seed = seed_of(settings.seed, index)
        key = key_of(task="samples", labels=group.tolist(), seed=seed, **facts)
        work = partial(_write_codes, model, group, sampling, seed)
        yield Group(group, run.run_block(Block("samples", index, key), work))


def seed_of(seed: int, group: int) -> int:
    """Seed of a group's random numbers: unlike those of other groups and other seeds."""
    return random.Random(f"{seed}:{group}").getrandbits(63)


def _write_codes(model: Any, labels: Tensor, sampling: Sampling, seed: int, path: Path) -> dict[str, float]:
    begin = time.perf_counter()
    codes = sample_codes(model, labels, sampling, seed)
    synchronize(model.device)
    seconds = time.perf_counter() - begin
    write_tensors(path, {"codes": codes.to(torch.int32)})
    return {"sampling_seconds": seconds, "images_sampled": len(labels)}
