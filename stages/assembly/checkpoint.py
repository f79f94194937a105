"""Writes a pruned checkpoint in a layout: the source's files with the pruned weights in their places, and the masks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.packing import pack
from stages.artifacts.tensorfile import TensorFile, TensorWriter, write_tensors
from stages.assembly.layout import Layout, LayoutPlanner
from stages.errors import ParameterError
from stages.models.classes.llamagen import image_class
from stages.models.classes.registration import copy_code
from stages.models.imaging.tokenizer import FOLDER
from stages.models.loading.checkpoint import INDEX, Checkpoint
from stages.models.streaming.units import units_of
from stages.walk.pruned import Pruned

MASKS = "masks.safetensors"
NOT_COPIED = {"manifest.json"}


def layout_of(pruned: Pruned, wanted: str, trust_remote_code: bool) -> Layout:
    """The layout `wanted` (assemble.layout) of a solution; where it removes no units, the one without changes.

    Raises ParameterError or ArchitectureError where the solution cannot have it.
    """
    model = pruned.model
    units = {index: kept for index in range(model.blocks) if (kept := pruned.units(index)) is not None}
    biases = {name for index in range(model.blocks) for name in pruned.biases(index)} - set(model.weights.names)
    if not units and not biases:
        if wanted != "auto":
            raise ParameterError(
                f"assemble.layout: {wanted} is for methods that remove heads and channels; where single weights are "
                "removed every tensor keeps its shape: set it to auto"
            )
        return Layout(made_for=image_class(str(model.config.model_type)))
    keep = [
        {kind.kind: torch.ones(kind.count, dtype=torch.bool) for kind in units_of(model, index)} | units.get(index, {})
        for index in range(model.blocks)
    ]
    return LayoutPlanner(model, keep, biases, trust_remote_code).plan(wanted)


def checkpoint_bytes(source: Path, layout: Layout) -> int:
    """Bytes of all tensors that `write_checkpoint` writes."""
    files = sorted(set(Checkpoint(source).files.values()))
    return sum(
        kind.itemsize * prod(shape) for name in files for kind, shape in _contents(source / name, layout).values()
    )


def write_checkpoint(source: Path, target: Path, pruned: Pruned, layout: Layout, tick: Callable[[int], object]) -> None:
    """Copy the checkpoint in `source` to `target` with the pruned weights in `layout`; `tick(bytes)` tells progress."""
    checkpoint, total = Checkpoint(source), 0
    holders = {tensor: name for name in set(checkpoint.files.values()) for tensor in _contents(source / name, layout)}
    for name in sorted(set(holders.values())):
        file, contents = TensorFile(source / name), _contents(source / name, layout)
        with TensorWriter(target / name, contents, {"format": "pt", **file.metadata}) as writer:
            for tensor, value in _values(file, contents, pruned, layout):
                writer.write(tensor, value)
                total += value.nbytes
                tick(value.nbytes)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in NOT_COPIED:
            shutil.copyfile(path, target / path.name)
    if (source / FOLDER).is_dir():
        shutil.copytree(source / FOLDER, target / FOLDER)
    if layout.values is not None:
        _write(target / "config.json", layout.values)
        if (source / INDEX).is_file():
            _write(target / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(holders.items()))})
    if layout.made_for is not None:
        copy_code(layout.made_for, target)


def _contents(path: Path, layout: Layout) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """dtype and shape of the tensors in a file of weights after `layout`; an added bias lies beside its weight."""
    contents = dict[str, tuple[torch.dtype, tuple[int, ...]]]()
    for tensor, span in TensorFile(path).spans.items():
        cut, bias = layout.cuts.get(tensor), tensor.removesuffix("weight") + "bias"
        contents[tensor] = span.dtype, cut.shape(span.shape) if cut else span.shape
        if bias in layout.added:
            contents[bias] = span.dtype, layout.added[bias]
    return contents


def _values(
    file: TensorFile, contents: dict[str, tuple[torch.dtype, tuple[int, ...]]], pruned: Pruned, layout: Layout
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a file, one after another: pruned or as it was, then cut; an added bias is 0 unless solved."""
    replaced = pruned.stored()
    for tensor, (dtype, shape) in contents.items():
        if tensor in replaced:
            index, parameter = replaced[tensor]
            value = pruned.block(index)[parameter]
        else:
            value = file.read([tensor])[tensor] if tensor in file.spans else torch.zeros(shape, dtype=dtype)
        if tensor in layout.cuts:
            value = layout.cuts[tensor].of(value)
        if tensor in layout.padding:
            value = value.masked_fill(layout.padding[tensor], 0)
        yield tensor, value.to(dtype)


def _write(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_masks(target: Path, pruned: Pruned) -> None:
    """Write all masks to masks.safetensors, packed: `<tensor>` as uint8, eight entries a byte, True = kept.

    The metadata tell the shape (d_out, d_in) that each unpacks to.
    """
    tensors, shapes = dict[str, Tensor](), {}
    for index in range(pruned.model.blocks):
        for linear, keep in pruned.masks(index).items():
            tensors[linear.tensor], shapes[linear.tensor] = pack(keep), linear.shape
    metadata = {"format": "packed bits, row-major, first in the highest bit, 1 = kept", "shapes": json.dumps(shapes)}
    write_tensors(target / MASKS, tensors, metadata)
