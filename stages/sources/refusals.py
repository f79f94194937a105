"""Checkpoints that are not taken: pickles, parts, quantised ones, weights that are no numbers."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from stages.errors import ArtifactError, SourceError
from stages.models.checkpoint import INDEX, SINGLE, Checkpoint
from stages.runner import progress
from stages.tensorfile import TensorFile

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
        missing = _not_in_their_files(checkpoint)
    except (ArtifactError, ValueError, KeyError) as error:
        cause = str(error).split(": delete it")[0]
        raise SourceError(f"fetch.model: {folder} is not whole ({cause}): copy or download it again") from None
    if missing:
        raise SourceError(f"fetch.model: {folder} is not whole ({missing[0]} is missing): copy or download it again")
    if any(Path(name).name != name for name in checkpoint.files.values()):
        raise SourceError(f"fetch.model: {INDEX} in {folder} names files outside it: expected plain file names")


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
    except ValueError as error:
        raise SourceError(f"fetch.model: {path} is not JSON ({error}): copy or download it again") from None
    quantised = config.get("quantization_config")
    if quantised:
        raise SourceError(
            f"fetch.model: the checkpoint is quantised ({quantised.get('quant_method', 'method not told')}), expected "
            "float weights: fetch the model that it was made from"
        )


def _not_in_their_files(checkpoint: Checkpoint) -> list[str]:
    """Tensors that the index promises and no file holds."""
    held = {name: set(TensorFile(checkpoint.folder / name).places) for name in sorted(set(checkpoint.files.values()))}
    return [tensor for tensor, name in checkpoint.files.items() if tensor not in held[name]]
