"""The solution of a block on disk: packed masks, refitted weights, a row a linear; kept units and biases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from stages.artifacts.packing import pack, unpack
from stages.artifacts.table import Row
from stages.artifacts.tensorfile import TensorFile, write_tensors


class BlockSolution(NamedTuple):
    """A solved block: a row a linear with its mask (d_out, d_in) and its kept weights (kept,) where they changed.

    units: by kind, which heads and channels (units,) bool stay, where a structured method chose them;
    biases: (d_out,) of linears, by name, where they are not the dense model's.
    """

    linears: Sequence[tuple[Row, Tensor, Tensor | None]]
    units: Mapping[str, Tensor] | None = None
    biases: Mapping[str, Tensor] | None = None


def write_block(
    path: Path,
    solved: Sequence[tuple[Row, Tensor, Tensor | None]],
    units: Mapping[str, Tensor] | None = None,
    biases: Mapping[str, Tensor] | None = None,
) -> None:
    """Write what a BlockSolution holds."""
    tensors = {f"units.{kind}": pack(keep) for kind, keep in (units or {}).items()}
    tensors |= {f"{linear}.bias": bias.cpu() for linear, bias in (biases or {}).items()}
    for row, keep, kept in solved:
        tensors[f"{row['linear']}.keep"] = pack(keep)
        if kept is not None:
            tensors[f"{row['linear']}.kept"] = kept.cpu()
    facts = {"rows": [row for row, _, _ in solved], "units": {kind: len(keep) for kind, keep in (units or {}).items()}}
    write_tensors(path, tensors, {name: json.dumps(fact, sort_keys=True) for name, fact in facts.items()})


def read_rows(path: Path) -> list[Row]:
    """The rows of a block's solution."""
    rows: list[Row] = json.loads(TensorFile(path).metadata["rows"])
    return rows


def read_units(path: Path) -> dict[str, Tensor]:
    """Which units (units,) bool of each kind are kept; nothing where no structured method chose them."""
    file = TensorFile(path)
    counts: dict[str, int] = json.loads(file.metadata["units"])
    return {kind: unpack(file.read([f"units.{kind}"])[f"units.{kind}"], (count,)) for kind, count in counts.items()}


def read_biases(path: Path, linears: Sequence[str]) -> dict[str, Tensor]:
    """Biases (d_out,) that are not the dense model's, under their parameters' names."""
    file = TensorFile(path)
    return file.read(name for linear in linears if (name := f"{linear}.bias") in file.spans)


def read_masks(path: Path, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
    """The mask (d_out, d_in) of each linear, by its name; shapes: of the linears."""
    tensors = TensorFile(path).read(f"{linear}.keep" for linear in shapes)
    return {linear: unpack(tensors[f"{linear}.keep"], shape) for linear, shape in shapes.items()}
