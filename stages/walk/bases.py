"""Bases of a sliced model's hidden states, as a solution's block files hold them (SliceGPT)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stages.artifacts.tensorfile import TensorFile
from stages.models.streaming.slicing import Bases

LAYOUT = "sliced"
"""Name of the layout that such a model's checkpoint has, in manifests."""


def read_bases(path: Path) -> Bases:
    """Bases of a block's norms."""
    found = TensorFile(path).read(["attention.basis", "mlp.basis"])
    return Bases(found["attention.basis"], found["mlp.basis"])


def read_lost(path: Path) -> dict[str, float]:
    """Share of the energy outside of each basis of a block's file."""
    lost: dict[str, float] = json.loads(TensorFile(path).metadata["lost"])
    return lost


def cached(solutions: list[Path]) -> Callable[[int], Bases]:
    """The bases of a block, of which the last ones read stay in memory."""
    held: dict[int, Bases] = {}

    def bases(index: int) -> Bases:
        if index not in held:
            held.clear()
            held[index] = read_bases(solutions[index])
        return held[index]

    return bases
