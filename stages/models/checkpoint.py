"""A Hugging Face folder of safetensors, read one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stages.errors import ArtifactError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Checkpoint:
    """Tensor names of a checkpoint and the files that hold them; files are opened only while reading.

    Raises ArtifactError if the folder holds no safetensors checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / INDEX).is_file():
            index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
            self.files: dict[str, str] = dict(index["weight_map"])
        elif (folder / SINGLE).is_file():
            with _opened(folder / SINGLE) as file:
                self.files = dict.fromkeys(file.keys(), SINGLE)
        else:
            raise ArtifactError(f"{folder} holds no {SINGLE}: run the fetch stage (dvc repro fetch)")

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors, in memory of their own, as they are stored.

        Raises ArtifactError if one is not there.
        """
        wanted: dict[str, list[str]] = {}
        for name in names:
            if name not in self.files:
                raise ArtifactError(f"{self.folder} has no tensor {name}: the checkpoint does not fit its config.json")
            wanted.setdefault(self.files[name], []).append(name)
        tensors = {}
        for file_name, inside in wanted.items():
            with _opened(self.folder / file_name) as file:
                tensors.update({name: file.get_tensor(name).clone() for name in inside})
        return tensors

    def dtype(self) -> torch.dtype:
        """dtype of the first floating-point tensor."""
        for name, file_name in self.files.items():
            with _opened(self.folder / file_name) as file:
                found: torch.dtype = file.get_slice(name)[:0].dtype
            if found.is_floating_point:
                return found
        raise ArtifactError(f"{self.folder} has no floating-point tensor: it is no language model")


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path} is no readable safetensors file ({error}): fetch the model again") from None
