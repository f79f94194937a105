"""Write the pruned checkpoint: the source's files, with the pruned weights in their places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from stages.artifacts.linears import Row
from stages.errors import ArtifactError
from stages.linalg.masks import groups_of, pack, satisfies_groups
from stages.models.checkpoint import Checkpoint
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.solution import read_masks, read_pruned
from stages.tensorfile import TensorFile, TensorWriter, write_tensors

MASKS = "masks.safetensors"
NOT_COPIED = {"manifest.json"}


class Pruned:
    """The pruned weights of a model, read from the solution a block at a time and checked as they are read.

    solutions: file of each block; rows: of the table of linears, by linear.
    """

    def __init__(self, model: StreamedModel, solutions: list[Path], rows: Mapping[str, Row]) -> None:
        self.model, self.solutions, self.rows = model, solutions, rows
        self._at: tuple[int, dict[str, Tensor]] = (-1, {})

    def block(self, index: int) -> Mapping[str, Tensor]:
        """Pruned weights of a block by parameter name, as they are stored.

        Raises ArtifactError unless every mask has its row's count, its N:M pattern, and true zeros beneath.
        """
        if self._at[0] != index:
            found = dict[str, Tensor]()
            for linear, keep, weight in read_pruned(self.solutions[index], self.model.linears(index), self.model):
                _check(linear, keep, linear.weight(weight), self.rows[linear.name])
                found[linear.tensor] = weight
            self._at = (index, found)
        return self._at[1]

    def masks(self, index: int) -> dict[Linear, Tensor]:
        """Masks (d_out, d_in) of a block's linears."""
        linears = self.model.linears(index)
        masks = read_masks(self.solutions[index], linears)
        return {linear: masks[linear.name] for linear in linears}


def _check(linear: Linear, keep: Tensor, weight: Tensor, row: Row) -> None:
    if int(keep.sum()) != row["kept"]:
        raise ArtifactError(f"{linear.name}: expected {row['kept']} kept weights, got {int(keep.sum())}")
    removed = weight[~keep]
    if bool((removed != 0).any()) or bool(removed.signbit().any()):
        raise ArtifactError(f"{linear.name}: a removed weight is not exactly 0: run the solve stage again")
    groups = groups_of(row["pattern"])
    if groups is not None and not satisfies_groups(keep, *groups):
        raise ArtifactError(f"{linear.name}: a group keeps more than {row['pattern']} allows")


def write_checkpoint(source: Path, target: Path, pruned: Pruned, tick: Callable[[int], object]) -> None:
    """Copy the checkpoint in `source` to `target` with the pruned weights; `tick(bytes)` tells progress."""
    replaced = {
        pruned.model.stored_names[linear.tensor]: linear
        for index in range(pruned.model.blocks)
        for linear in pruned.model.linears(index)
    }
    checkpoint = Checkpoint(source)
    for name in sorted(set(checkpoint.files.values())):
        file = TensorFile(source / name)
        layout = {tensor: (place.dtype, place.shape) for tensor, place in file.places.items()}
        with TensorWriter(target / name, layout, {"format": "pt", **file.metadata}) as writer:
            for tensor in layout:
                linear = replaced.get(tensor)
                stored = pruned.block(linear.block)[linear.tensor] if linear else file.read([tensor])[tensor]
                writer.write(tensor, stored)
                tick(stored.nbytes)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in NOT_COPIED:
            shutil.copyfile(path, target / path.name)


def write_masks(target: Path, pruned: Pruned) -> None:
    """All masks in one file, packed: `<tensor>` as uint8, eight entries a byte, True = kept.

    The metadata tell the shape (d_out, d_in) that each unpacks to.
    """
    tensors, shapes = dict[str, Tensor](), {}
    for index in range(pruned.model.blocks):
        for linear, keep in pruned.masks(index).items():
            tensors[linear.tensor], shapes[linear.tensor] = pack(keep), linear.shape
    metadata = {"format": "packed bits, row-major, first in the highest bit, 1 = kept", "shapes": json.dumps(shapes)}
    write_tensors(target / MASKS, tensors, metadata)
