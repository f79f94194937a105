"""What goes with an image model (LlamaGen) into its folder: the image tokenizer, and the code of its class."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from stages.artifacts.images import ImageFacts
from stages.errors import ArtifactError, SourceError, reason_of
from stages.models.classes.llamagen import CLASSES
from stages.models.classes.modeling_llamagen import LlamaGenConfig
from stages.models.classes.registration import class_values, copy_code
from stages.models.imaging.tokenizer import FOLDER, load_image_tokenizer
from stages.sources.refusals import PICKLES, check_finite

PARTS = ("config.json", "*.safetensors", "model.safetensors.index.json")
"""Files of an image tokenizer; everything else in its folder is left behind."""


def is_image_model(folder: Path) -> bool:
    """Whether config.json of a checkpoint's folder is that of an image model; False where it cannot be read."""
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("model_type") in CLASSES


def copy_image_parts(source: Path, target: Path) -> None:
    """Copy the image tokenizer's files, write the class's code, and name it in config.json (`auto_map`).

    Code in `source` is not copied. Raises SourceError where the folder of the image tokenizer is missing or holds
    pickles only.
    """
    tokenizer = source / FOLDER
    paths = sorted({path for pattern in PARTS for path in tokenizer.glob(pattern) if path.is_file()})
    if {path.suffix for path in paths} != {".json", ".safetensors"}:
        pickles = sorted(path.name for pattern in PICKLES for path in tokenizer.glob(pattern))
        found = f"holds {pickles[0]}: no pickle is ever loaded" if pickles else "lacks config.json or safetensors"
        raise SourceError(
            f"fetch.model: {tokenizer} {found if tokenizer.is_dir() else 'is missing'}: expected the image tokenizer "
            "of the image model; `python -m stages.models.importing.llamagen` makes both of the published .pt files"
        )
    (target / FOLDER).mkdir()
    for path in paths:
        shutil.copyfile(path, target / FOLDER / path.name)
    config = target / "config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    named = json.dumps(class_values(values, CLASSES), indent=2, ensure_ascii=False)
    config.write_text(named + "\n", encoding="utf-8")
    copy_code(CLASSES[values["model_type"]][1], target)


def check_image_model(folder: Path) -> ImageFacts:
    """Sizes of the image model in `folder`; raises SourceError unless its image tokenizer is sound and fits it."""
    config = LlamaGenConfig.from_pretrained(folder, local_files_only=True)
    try:
        tokenizer = load_image_tokenizer(folder, "cpu").config
    except ArtifactError as error:
        raise SourceError(f"fetch.model: {reason_of(error).partition(': ')[2]}") from error
    check_finite(folder / FOLDER)
    sizes = (
        ("num_embeddings", "codes", tokenizer.num_embeddings, "vocab_size", config.vocab_size),
        ("num_patches", "codes on a side of an image", tokenizer.num_patches, "the grid", config.grid_size),
    )
    for name, what, found, of_model, expected in sizes:
        if found != expected:
            raise SourceError(
                f"fetch.model: {FOLDER}/config.json has {found} {what} ({name}), expected {expected}, {of_model} of "
                "the model: they do not belong together"
            )
    return ImageFacts(config.num_classes, config.codes, config.sequence_length)
