"""Projects of tiny image models before fetch: a converted LlamaGen, folders of images, params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import JanusVQVAE, JanusVQVAEConfig

from stages.models.imaging.pictures import write_picture
from stages.params.yamlfile import yaml_text
from tests.helpers.llamagen import CLASSES, GRID, SIDE, converted
from tests.helpers.tiny import params_values

CODES = GRID**2
SEQUENCE = 1 + CODES
DRAWN = {"source": "generated", "images": 2, "batch": 4, "device": "cpu"}


def image_project(folder: Path, **sections: Any) -> Path:
    """Write `source`, a converted model, and params.yaml (see `write_image_params`) to a folder; gives the source."""
    write_image_params(folder, **sections)
    return converted(folder).rename(folder / "source")


def write_image_params(folder: Path, **sections: Any) -> None:
    """params.yaml of an image model that draws its own calibration; `sections` are merged in, one level deep."""
    fetch = {
        "model": {"source": "local", "path": "source"},
        "calibration": DRAWN,
        "evaluation": {**DRAWN, "images": 1, "seed": 1},
    }
    values = params_values(
        fetch=fetch,
        calibration={"sequences": 8, "length": SEQUENCE},
        evaluate={
            "perplexity": {"window": SEQUENCE, "stride": SEQUENCE},
            "tasks": {"names": []},
            "attention": {"sequences": 2, "length": SEQUENCE},
            "speed": {"repeats": 0},
        },
    )
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    (folder / "params.yaml").write_text(yaml_text(values), encoding="utf-8")


def save_image_tokenizer(folder: Path, codes: int, grid: int) -> None:
    """A random image tokenizer in the folder of an image model."""
    torch.manual_seed(0)
    config = JanusVQVAEConfig(
        base_channels=32, channel_multiplier=[1], num_res_blocks=1, latent_channels=8, embed_dim=8,
        num_embeddings=codes, num_patches=grid,
    )  # fmt: skip
    JanusVQVAE(config).save_pretrained(folder / "image_tokenizer")


def save_images(folder: Path, each: int = 2, seed: int = 0, side: int = SIDE) -> None:
    """Noise as PNG files, in a folder for each class."""
    generator = torch.Generator().manual_seed(seed)
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = torch.randint(256, (3, side, side), generator=generator, dtype=torch.uint8)
            write_picture(folder / f"class{label}/{number}.png", pixels)
