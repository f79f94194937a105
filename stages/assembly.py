"""Write the pruned checkpoint: the source's files, with the pruned weights in their places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from stages.errors import ArtifactError
from stages.linalg.masks import pack, satisfies_groups
from stages.models.checkpoint import Checkpoint
from stages.models.streamed import StreamedModel
from stages.models.structure import Linear
from stages.solution import Row, read_masks, read_weights
from stages.tensorfile import TensorFile, TensorWriter, write_tensors

MASKS = "masks.safetensors"
NOT_COPIED = {"manifest.json"}


class Pruned:
    """The pruned weights of a model, read from the solution a block at a time.

    solutions: file of each block.
    """

    def __init__(self, model: StreamedModel, solutions: list[Path]) -> None:
        self.model, self.solutions = model, solutions
        self._at: tuple[int, dict[str, Tensor]] = (-1, {})

    def block(self, index: int) -> Mapping[str, Tensor]:
        """Pruned weights of a block by parameter name, as they are stored."""
        if self._at[0] != index:
            self._at = (index, read_weights(self.solutions[index], self.model.linears(index), self.model))
        return self._at[1]

    def masks(self, index: int) -> dict[Linear, Tensor]:
        """Masks (d_out, d_in) of a block's linears."""
        linears = self.model.linears(index)
        masks = read_masks(self.solutions[index], linears)
        return {linear: masks[linear.name] for linear in linears}


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


def check_masks(pruned: Pruned, rows: Mapping[str, Row], tick: Callable[[int], object]) -> None:
    """Raise ArtifactError unless every mask has its row's count, its N:M pattern, and true zeros beneath."""
    for index in range(pruned.model.blocks):
        weights = pruned.block(index)
        for linear, keep in pruned.masks(index).items():
            row, weight = rows[linear.name], linear.weight(weights[linear.tensor])
            if int(keep.sum()) != row["kept"]:
                raise ArtifactError(f"{linear.name}: expected {row['kept']} kept weights, got {int(keep.sum())}")
            removed = weight[~keep]
            if bool((removed != 0).any()) or bool(removed.signbit().any()):
                raise ArtifactError(f"{linear.name}: a removed weight is not exactly 0: run the solve stage again")
            if ":" in row["pattern"] and not satisfies_groups(keep, *map(int, row["pattern"].split(":"))):
                raise ArtifactError(f"{linear.name}: a group keeps more than {row['pattern']} allows")
        tick(1)
