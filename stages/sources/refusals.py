"""Refuses checkpoints that are pickled, incomplete or quantised, or whose weights are NaN or infinite."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.artifacts.tensorfile import TensorFile
from stages.errors import ArtifactError, SourceError
from stages.models.loading.checkpoint import INDEX, SINGLE, Checkpoint
from stages.runtime.progress import progress

PICKLES = "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"


def check_folder(folder: Path) -> None:
    """Raise SourceError unless `folder` holds a whole, plain safetensors checkpoint and its config.json."""
    if not (folder / INDEX).is_file() and not (folder / SINGLE).is_file():
        pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
        if pickles:
            raise SourceError(
                f"fetch.model: {folder} holds {pickles[0]} and no {SINGLE}: no pickle is ever loaded; where you trust "
                "it, convert it once: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), and "
                "the same with AutoTokenizer"
            )
        raise SourceError(f"fetch.model: {folder} holds no {SINGLE}: expected a Hugging Face folder of safetensors")
    _check_config(folder / "config.json")
    try:
        checkpoint = Checkpoint(folder)
        if any(Path(name).name != name for name in checkpoint.files.values()):
            raise SourceError(f"fetch.model: {INDEX} in {folder} names files outside it: expected plain file names")
        wrong = _misplaced(checkpoint)
    except ArtifactError as error:
        cause = re.split(": (delete it|run the stage)", str(error))[0]
        raise SourceError(f"fetch.model: {folder} is not whole ({cause}): copy or download it again") from None
    if wrong:
        raise SourceError(f"fetch.model: {folder} is not whole ({wrong}): copy or download it again")


def check_finite(folder: Path) -> None:
    """Raise SourceError, naming the tensor, if a weight of the checkpoint is NaN or infinite."""
    checkpoint = Checkpoint(folder)
    for name in progress(checkpoint.files, desc="check the weights", unit=" tensors"):
        tensor = checkpoint.read([name])[name]
        if tensor.is_floating_point() and not _finite(tensor):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise SourceError(
                f"fetch.model: {name} holds weights that are NaN or infinite in {dtype}: "
                "use a sound checkpoint, or another fetch.model.dtype"
            )


def _finite(tensor: Tensor) -> bool:
    """Whether all entries are; by the extremes, which NaN passes through, in one pass without copies."""
    if not tensor.numel():
        return True
    smallest, largest = tensor.aminmax()
    return bool(smallest.isfinite()) and bool(largest.isfinite())


def _check_config(path: Path) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceError(f"fetch.model: {path} is missing: expected a Hugging Face folder") from None
    except (ValueError, RecursionError) as error:
        raise SourceError(f"fetch.model: {path} is not JSON ({error}): copy or download it again") from None
    if not isinstance(config, dict):
        raise SourceError(f"fetch.model: {path} is a {type(config).__name__}, expected an object of settings")
    quantised = config.get("quantization_config")
    if quantised:
        raise SourceError(
            f"fetch.model: the checkpoint is quantised ({_method_of(quantised)}), expected "
            "float weights: fetch the model that it was made from"
        )


def _method_of(quantised: Any) -> str:
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    return str(method or "method not told")


def _misplaced(checkpoint: Checkpoint) -> str | None:
    """A tensor that its file lacks, or that lies in another file than the index tells (or in two); None if all fit."""
    for name in sorted(set(checkpoint.files.values())):
        held = set(TensorFile(checkpoint.folder / name).spans)
        missing = [tensor for tensor, file in checkpoint.files.items() if file == name and tensor not in held]
        if missing:
            return f"{missing[0]} is missing from {name}"
        other = [tensor for tensor in sorted(held) if checkpoint.files.get(tensor) != name]
        if other:
            return f"{other[0]} lies in {name}, where {INDEX} puts {checkpoint.files.get(other[0], 'no such tensor')}"
    return None
