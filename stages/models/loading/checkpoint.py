"""A Hugging Face folder of safetensors, read one tensor at a time; files are opened only while reading."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.tensorfile import TensorFile
from stages.errors import ArtifactError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class Checkpoint:
    """Tensor names of a checkpoint and the files that hold them.

    Raises ArtifactError if the folder holds no safetensors checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if (folder / INDEX).is_file():
            self.files: dict[str, str] = _weight_map(folder / INDEX)
        elif (folder / SINGLE).is_file():
            self.files = dict.fromkeys(TensorFile(folder / SINGLE).spans, SINGLE)
        else:
            raise ArtifactError(f"{folder} holds no {SINGLE}: run the fetch stage (dvc repro fetch)")

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors as they are stored, on the CPU.

        Raises ArtifactError for a name that the checkpoint lacks.
        """
        wanted: dict[str, list[str]] = {}
        for name in names:
            if name not in self.files:
                raise ArtifactError(f"{self.folder} has no tensor {name}: the checkpoint does not fit its config.json")
            wanted.setdefault(self.files[name], []).append(name)
        tensors = {}
        for file_name, inside in wanted.items():
            tensors.update(TensorFile(self.folder / file_name).read(inside))
        return tensors

    def dtype(self) -> torch.dtype:
        """dtype of the first floating-point tensor."""
        for name in sorted(set(self.files.values())):
            for span in TensorFile(self.folder / name).spans.values():
                if span.dtype.is_floating_point:
                    return span.dtype
        raise ArtifactError(f"{self.folder} has no floating-point tensor: it is no language model")


def _weight_map(path: Path) -> dict[str, str]:
    """File name of each tensor, from an index; raises ArtifactError where it is malformed."""
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON ({error})") from None
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        found = type(index).__name__ if not isinstance(index, dict) else f"weight_map: {type(files).__name__}"
        raise ArtifactError(f"{path}: expected an object whose weight_map names a file for every tensor, got {found}")
    return files
