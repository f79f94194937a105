"""Published LlamaGen checkpoints that cannot be converted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.bad_input.case import Change, bad, both, cut, good, remove, write
from tests.helpers.llamagen import CLASSES, HEADS, SIDE, save_public

COMMAND = (
    f"stages.models.importing.llamagen c2i.pt vq.pt llamagen --image-size {SIDE} --heads {HEADS} --classes {CLASSES}"
)


class Code:
    """An object whose pickle makes a folder in the working directory when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("ran",)


def published(**values: Any) -> Change:
    """Write files as LlamaGen publishes them, `values` beside the model's tensors."""

    def change(folder: Path) -> None:
        transformer, _ = save_public(folder)
        torch.save({**torch.load(transformer, weights_only=True), **values}, transformer)

    return change


def tensors(**values: Any) -> Change:
    """Write files whose model has other tensors."""

    def change(folder: Path) -> None:
        transformer, _ = save_public(folder)
        state = torch.load(transformer, weights_only=True)["model"]
        torch.save({"model": state | {name.replace("__", "."): value for name, value in values.items()}}, transformer)

    return change


CASES = [
    good("published images convert", COMMAND, published(steps=3)),
    bad("code in a published model", COMMAND, published(hook=Code()), r"c2i\.pt holds \w+\.mkdir", "code is never run"),
    bad("a published model cut short", COMMAND, both(published(), cut("c2i.pt")), r"c2i\.pt cannot be read", "again"),
    bad("no published tokenizer", COMMAND, both(published(), remove("vq.pt")), r"vq\.pt is no file: expected a \.pt"),
    bad("text for a published model", COMMAND, both(published(), write("c2i.pt", "weights")), "cannot be read as"),
    bad(
        "a published model of texts", COMMAND, tensors(cls_embedding__cap_proj__fc1__weight=torch.ones(2, 2)),
        r"c2i\.pt is conditional on text", "expected a class-conditional model",
    ),
    bad(
        "a published model without half its blocks", COMMAND, tensors(layers__3__ffn_norm__weight=torch.ones(32)),
        r"c2i\.pt has no tensor layers\.2\.", "13 missing", "not whole",
    ),
    bad(
        "published images of another size", COMMAND.replace(f"size {SIDE}", "size 9"), published(),
        "--image-size: expected a multiple of 2", "got 9",
    ),
    bad(
        "a folder for published images that is there", COMMAND,
        both(published(), write("llamagen/mine.txt", "kept")), "llamagen is already there: name a new folder",
    ),
]  # fmt: skip
