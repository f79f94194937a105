"""SliceGPT's orthonormal bases of hidden states, read from a solution's block files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from stages.artifacts.tensorfile import TensorFile
from stages.models.streaming.slicing import Bases

LAYOUT = "sliced"
"""Name of the layout that such a model's checkpoint has, in manifests."""


def read_bases(path: Path) -> Bases:
    """Bases of the hidden states entering a block's two norms, (width, kept) each, as they are stored."""
    tensors = TensorFile(path).read(["attention.basis", "mlp.basis"])
    return Bases(tensors["attention.basis"], tensors["mlp.basis"])


def read_lost(path: Path) -> dict[str, float]:
    """Share of the hidden states' energy outside each basis in a block's solution file, by the basis's name."""
    lost: dict[str, float] = json.loads(TensorFile(path).metadata["lost"])
    return lost


def read_final_basis(solutions: Sequence[Path]) -> Tensor | None:
    """Basis (width, kept) float64 of the hidden states entering the last norm; None where those are not sliced."""
    file = TensorFile(solutions[-1])
    return file.read(["final.basis"])["final.basis"].double() if "final.basis" in file.spans else None


def bases_reader(solutions: Sequence[Path]) -> Callable[[int], Bases]:
    """A function that reads a block's bases from its solution file and keeps those of the last block in memory."""
    held: dict[int, Bases] = {}

    def bases(index: int) -> Bases:
        if index not in held:
            held.clear()
            held[index] = read_bases(solutions[index])
        return held[index]

    return bases
