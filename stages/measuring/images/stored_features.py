"""Features of samples and of reference images, kept in the block store group by group: both models share the latter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stages.artifacts.code import code_of
from stages.artifacts.manifest import sha256_of
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.measuring.images.samples import Group
from stages.models.imaging.features import FeatureNetwork, Features
from stages.models.imaging.tokenizer import FOLDER, decode
from stages.models.loading.compute import compute_facts
from stages.runtime.blocks.contract import Block
from stages.runtime.stage import StageRun

Images = Callable[[], Tensor]
"""Reads images, bytes (n, 3, height, width), when they are wanted."""


def features_of_group(
    run: StageRun, network: FeatureNetwork, tokenizer: Any, files: Mapping[str, str], index: int, group: Group
) -> Path:
    """The file of the features of a group's decoded samples, resized to evaluate.images.size where it is set.

    files: sha256 of the model's files by name, the image tokenizer's among them.
    """
    size = run.params.evaluate.images.size
    source = {
        "codes": sha256_of(group.path),
        "size": size,
        "tokenizer": {name: digest for name, digest in files.items() if name.startswith(f"{FOLDER}/")},
    }
    images = partial(decoded, tokenizer, group, size)
    return stored_features(run, network, "sample_features", index, source, images)


def decoded(tokenizer: Any, group: Group, size: int | None = None) -> Tensor:
    """Images of a group's codes, bytes (n, 3, height, width), at `size` pixels a side if it is given."""
    images = decode(tokenizer, group.codes())
    if size in (None, images.shape[-1]):
        return images
    resized = functional.interpolate(images.float(), size=(size, size), mode="bicubic")
    return resized.round().clamp(0, 255).byte()


def stored_features(
    run: StageRun, network: FeatureNetwork, task: str, index: int, source: Mapping[str, Any], images: Images
) -> Path:
    """The file of the features of images in the block store. source: what the images follow from."""
    device = next(network.network.parameters()).device
    facts = {"network": dict(network.files), "name": network.name, **compute_facts(device, torch.float32, 0)}
    key = key_of(task=task, code=code_of(_write_features), source=source, **facts)
    return run.run_block(Block(task, index, key), partial(_write_features, network, images))


def _write_features(network: FeatureNetwork, images: Images, path: Path) -> None:
    features = network(images())
    write_tensors(path, {field.name: getattr(features, field.name).contiguous() for field in fields(Features)})


def read_features(paths: Sequence[Path]) -> Features:
    """The features in some files, one after another."""
    groups = [read_tensors(path) for path in paths]
    return Features(**{field.name: torch.cat([group[field.name] for group in groups]) for field in fields(Features)})
