"""Normalised checkpoints, as the later stages read them: every parameter stored as it is used, in one dtype.

Tensors keep the names that the source gives them (names.py finds each parameter under them), so what
could load the source can load what is made of it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from stages.artifacts.tensorfile import TensorFile, TensorWriter
from stages.errors import ArchitectureError, SourceError, reason_of
from stages.models.loading.checkpoint import INDEX, Checkpoint
from stages.models.loading.load import longest_input
from stages.models.loading.names import stored_names, unknown_tensors
from stages.models.loading.skeleton import build_skeleton
from stages.models.structure import find_blocks


@dataclass(frozen=True)
class Survey:
    """Facts about a checkpoint folder, found without loading its weights.

    vocabulary: rows of the input embeddings; positions: see load.longest_input.
    unstored:   parameters that no tensor of the checkpoint holds as they are used.
    """

    architecture: str
    parameters: int
    vocabulary: int
    positions: int | None
    unstored: tuple[str, ...]


def survey(folder: Path, trust_remote_code: bool) -> Survey:
    """Check a checkpoint against the model that its config.json describes, built without memory.

    Raises SourceError if transformers cannot build it, if it has no blocks, if a tensor has another shape or holds
    quantised weights, or belongs to no parameter.
    """
    try:
        model = build_skeleton(folder, torch.float32, trust_remote_code)
    except Exception as error:  # configurations are checked by transformers, its dependencies and remote code
        reason = reason_of(error, whole=True)
        raise SourceError(
            f"fetch.model: transformers cannot build a causal language model from its config.json ({reason}): "
            "expected a decoder that transformers knows; trust_remote_code: true runs the model's own code"
        ) from error
    try:
        find_blocks(model)
    except ArchitectureError as error:
        raise SourceError(f"fetch.model: {error}") from None
    model.tie_weights()
    checkpoint, state = Checkpoint(folder), model.state_dict(keep_vars=True)
    stored = stored_names(model, checkpoint.files)
    _check_tensors(checkpoint, {tensor: state[name] for name, tensor in stored.items()})
    unknown = unknown_tensors(model, checkpoint.files)
    if unknown:
        raise SourceError(
            f"fetch.model: {unknown[0]} is in the checkpoint ({len(unknown)} such tensors), and nothing in its "
            "config.json wants it: expected the config.json that the weights came with; tensors that are not needed "
            "go if the model is saved again: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
        )
    held = {id(state[name]) for name in stored}
    return Survey(
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        positions=longest_input(model),
        unstored=tuple(name for name, tensor in state.items() if id(tensor) not in held),
    )


def copy_weights(source: Path, target: Path, dtype: torch.dtype | None, tick: Callable[[int], object]) -> None:
    """Copy the weights file by file; floating-point tensors of another `dtype` are cast, one at a time.

    tick: called with the number of bytes read.
    """
    total = 0
    for name in sorted(set(Checkpoint(source).files.values())):
        file = TensorFile(source / name)
        layout = {
            tensor: (dtype if dtype and span.dtype.is_floating_point else span.dtype, span.shape)
            for tensor, span in file.spans.items()
        }
        if all(layout[tensor][0] == span.dtype for tensor, span in file.spans.items()):
            shutil.copyfile(source / name, target / name)
            tick((source / name).stat().st_size)
        else:
            with TensorWriter(target / name, layout, file.metadata) as writer:
                for tensor, (kind, _) in layout.items():
                    value = file.read([tensor])[tensor]
                    writer.write(tensor, value.to(kind))
                    tick(value.nbytes)
            tick((source / name).stat().st_size - sum(span.size for span in file.spans.values()))  # the header
        total += (target / name).stat().st_size
    if (source / INDEX).is_file():
        index = json.loads((source / INDEX).read_text(encoding="utf-8"))
        _write(target / INDEX, {**index, "metadata": {**index.get("metadata", {}), "total_size": total}})


def rewrite(source: Path, target: Path, dtype: torch.dtype | None, trust_remote_code: bool) -> None:
    """Load the whole model and save it under its own names: for tensors that transformers merges or splits.

    Raises SourceError if the checkpoint lacks a parameter.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        str(source),
        dtype=dtype or Checkpoint(source).dtype(),
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise SourceError(
            f"fetch.model: the checkpoint has no tensor for {missing[0]}: it does not fit its config.json"
        )
    model.save_pretrained(str(target), save_original_format=False)


def settle_dtype(folder: Path) -> str:
    """Write the weights' dtype into config.json; returns its name."""
    dtype = str(Checkpoint(folder).dtype()).removeprefix("torch.")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("dtype", config.get("torch_dtype")) != dtype:
        config.pop("torch_dtype", None)
        _write(folder / "config.json", {**config, "dtype": dtype})
    return dtype


def _check_tensors(checkpoint: Checkpoint, expected: dict[str, Tensor]) -> None:
    """Raise SourceError for a tensor of another shape than its parameter's, or of numbers that are no plain floats."""
    for name in sorted(set(checkpoint.files.values())):
        for tensor, span in TensorFile(checkpoint.folder / name).spans.items():
            wanted = expected.get(tensor)
            if wanted is not None and tuple(wanted.shape) != span.shape:
                raise SourceError(
                    f"fetch.model: {tensor} has shape {span.shape}, expected {tuple(wanted.shape)} by its "
                    "config.json: the files do not belong together"
                )
            plain = span.dtype.is_floating_point and span.dtype.itemsize > 1
            if not plain and (wanted is None or wanted.is_floating_point()):
                raise SourceError(
                    f"fetch.model: {tensor} is {str(span.dtype).removeprefix('torch.')}, expected float32, bfloat16 "
                    "or float16: the checkpoint is quantised: fetch the model that it was made from"
                )


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
