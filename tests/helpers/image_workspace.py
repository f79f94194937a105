"""A tiny project folder with a random LlamaGen model, its image tokenizer, a classifier and reference images."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import ResNetConfig, ResNetForImageClassification

from stages import evaluate
from stages.artifacts.manifest import write_manifest
from stages.models.imaging.pictures import write_picture
from stages.runtime.stage import run_stage
from tests.helpers.llamagen import CLASSES, CODES, GRID, SIDE, converted
from tests.helpers.tiny import write_params

SEQUENCE = 1 + GRID**2
HELD_OUT = 6
"""Images of the evaluation set."""


def settings(perplexity=None, names=(), **images: Any) -> dict[str, Any]:
    """The section evaluate for a model of images."""
    window = {"window": SEQUENCE, "stride": SEQUENCE}
    return {
        "perplexity": window | (perplexity or {}),
        "tasks": {"names": list(names)},
        "images": {"count": 10, "batch": 4, "shown": 10, "features": "classifier", "reference": "reference"} | images,
    }


def image_workspace(folder: Path, **images: Any) -> None:
    """Fill `folder`, which is the working directory, as fetch would, with a classifier and images beside."""
    write_params(folder, evaluate=settings(**images))
    shutil.copytree(converted(folder), folder / "data/model")
    write_manifest(Path("data/model"), {"source": {"source": "local"}, "images": {}})
    texts = folder / "data/texts"
    texts.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(CODES, (HELD_OUT, SEQUENCE), generator=generator, dtype=torch.int32)
    codes[:, 0] = CODES + torch.arange(HELD_OUT) % CLASSES
    for name in ("calibration", "evaluation"):
        pq.write_table(pa.table({"token": codes.flatten().numpy()}), texts / f"{name}.parquet")
    facts = {"name": "random images", "tokens": codes.numel(), "sha256": "0" * 64, "join": "", "sequence": SEQUENCE}
    write_manifest(texts, {"calibration": facts, "evaluation": facts})
    save_classifier(folder / "classifier")
    save_reference(folder / "reference")


def save_classifier(folder: Path, classes: int = CLASSES) -> None:
    """A random ResNet of a few channels."""
    torch.manual_seed(2)
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 8, 6], "depths": [1, 1, 1], "layer_type": "basic"}
    ResNetForImageClassification(ResNetConfig(**sizes, num_labels=classes)).save_pretrained(folder)


def reference_images(count: int = 9, side: int = SIDE) -> torch.Tensor:
    """Random pixels, bytes (count, 3, side, side)."""
    return torch.randint(256, (count, 3, side, side), generator=torch.Generator().manual_seed(3)).byte()


def save_reference(folder: Path, count: int = 9) -> None:
    """Reference images as PNG files, some of them in a folder inside."""
    for index, image in enumerate(reference_images(count)):
        place = folder / ("inner" if index % 2 else ".")
        place.mkdir(parents=True, exist_ok=True)
        write_picture(place / f"{index}.png", image)


def save_npz(path: Path, **arrays: Any) -> None:
    """An .npz file as ADM's evaluator reads; arr_0: images (n, height, width, 3)."""
    np.savez(path, **arrays)


def run(which: str = "dense") -> int:
    """Run the evaluate stage; gives its exit code."""
    return run_stage("evaluate", partial(evaluate.main, which=which), evaluate.SECTIONS, cost_name=f"evaluate_{which}")


def figures(which: str = "dense") -> dict[str, Any]:
    """What the stage measured of images."""
    return json.loads(Path(f"metrics/{which}.json").read_text())["images"]


def protocol(which: str = "dense") -> dict[str, Any]:
    """How it measured."""
    return json.loads(Path(f"data/evaluation/{which}/protocol.json").read_text())
