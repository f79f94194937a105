"""Codes of chosen images: drawn by the image model, or encoded from files by its image tokenizer.

Groups of images are kept in the block store, so that a run that was killed goes on from the last finished one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, sha256_of
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.models.imaging.pictures import cropped, read_picture
from stages.models.imaging.sampling import Sampling, sample_codes
from stages.models.imaging.tokenizer import encode, image_side, load_image_tokenizer
from stages.models.loading.compute import compute_facts, device_of
from stages.models.loading.load import load_model
from stages.params.image_sources import GeneratedImages
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.sources.pictures import ChosenImages

ENCODED = 64
"""Image files that are encoded, and filed, together."""


@dataclass(frozen=True)
class ImageModel:
    """The image model in `folder`, whose manifest is written: its network and its image tokenizer on a device."""

    folder: Path
    device: torch.device

    @cached_property
    def network(self) -> Any:
        """LlamaGenForImageGeneration, in the checkpoint's dtype."""
        return load_model(self.folder, "auto", str(self.device))

    @cached_property
    def tokenizer(self) -> Any:
        """The image tokenizer."""
        return load_image_tokenizer(self.folder, str(self.device))


def codes_of(run: StageRun, chosen: ChosenImages, folder: Path) -> Tensor:
    """Codes (images, codes), int64, of the chosen images, by the image model in `folder`, whose manifest is written."""
    model = ImageModel(folder, device_of(chosen.source.device, f"{chosen.place}.device"))
    groups = list(_drawn(chosen, model) if isinstance(chosen.source, GeneratedImages) else _encoded(chosen, model))
    made = list[Tensor]()
    with progress(total=len(chosen.labels), desc=f"{groups[0][0].task} {chosen.place}", unit=" images") as bar:
        for block, work in groups:
            made.append(read_tensors(run.run_block(block, work))["codes"])
            bar.update(len(made[-1]))
    return torch.cat(made)


def _drawn(chosen: ChosenImages, model: ImageModel) -> Iterator[tuple[Block, Any]]:
    """Blocks of images drawn together, each by random numbers of its own."""
    source = chosen.source
    assert isinstance(source, GeneratedImages)
    sampling = Sampling.of(source)
    facts = {
        "code": code_of(_draw), "model": identity_of(model.folder), "sampling": asdict(sampling),
        **compute_facts(model.device, torch.float32, source.batch),
    }  # fmt: skip
    for index, start in enumerate(range(0, len(chosen.labels), source.batch)):
        labels = list(chosen.labels[start : start + source.batch])
        # Other random numbers than evaluate's: the samples that are measured are not those of calibration.
        seed = random.Random(f"fetch {source.seed} {index}").getrandbits(63)
        key = key_of(task="draw", labels=labels, seed=seed, **facts)
        yield Block("draw", index, key), partial(_draw, model, labels, sampling, seed)


def _draw(model: ImageModel, labels: list[int], sampling: Sampling, seed: int, path: Path) -> Mapping[str, float]:
    """Write `codes` of drawn images; gives how many there are."""
    codes = sample_codes(model.network, torch.tensor(labels), sampling, seed)
    write_tensors(path, {"codes": codes})
    return {"images_drawn": len(codes)}


def _encoded(chosen: ChosenImages, model: ImageModel) -> Iterator[tuple[Block, Any]]:
    """Blocks of image files encoded together."""
    facts = {
        "code": code_of(_encode), "model": identity_of(model.folder),
        **compute_facts(model.device, torch.float32, ENCODED),
    }  # fmt: skip
    for index, start in enumerate(range(0, len(chosen.files), ENCODED)):
        files = list(chosen.files[start : start + ENCODED])
        key = key_of(task="encode", files=[sha256_of(path) for path in files], **facts)
        yield Block("encode", index, key), partial(_encode, model, files)


def _encode(model: ImageModel, files: list[Path], path: Path) -> Mapping[str, float]:
    """Write `codes` of image files; gives how many there are."""
    side = image_side(model.tokenizer)
    codes = encode(model.tokenizer, torch.stack([cropped(read_picture(file), side) for file in files]))
    write_tensors(path, {"codes": codes.cpu()})
    return {"images_encoded": len(codes)}
