"""Input hidden states of each block of a partly pruned model, computed on demand.

Up to the first block that pruning changes they are the dense model's, which extract stored. Beyond it they are
computed by running the pruned blocks, and stay in the block store until the next block's are there: a run that was
killed finds the last ones again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from stages.artifacts.activations import activations_suffix
from stages.artifacts.manifest import read_manifest, verified
from stages.artifacts.places import ACTIVATIONS, block_file
from stages.artifacts.store import BlockStore, key_of
from stages.models.streaming.streamed import StreamedModel
from stages.walk.forward import advance
from stages.walk.pruned import read_weights


class BlockInputStates:
    """Files of the hidden states entering each block of `model`, whose blocks before it are pruned.

    chunk: sequences run through a block together.
    """

    def __init__(self, model: StreamedModel, chunk: int) -> None:
        self._model, self._chunk = model, chunk
        self._store = BlockStore("entering")
        self._manifest = read_manifest(ACTIVATIONS)

    def states(self, index: int, solutions: list[Path], keys: list[str], changed: int | None) -> Path:
        """File of the states entering block `index`, computed where it is not in the block store.

        solutions, keys: files and keys of the solved blocks before it; changed: first block that pruning changes.
        """
        if changed is None or index <= changed:
            return self.dense(index)
        stored = self._store.find(self._key(keys[index - 1]))
        if stored is not None:
            return stored
        before = self.states(index - 1, solutions, keys, changed)
        made = self._store.make(self._key(keys[index - 1]), partial(self._advance, index - 1, before, solutions))
        if index - 1 > changed:
            self._store.drop(self._key(keys[index - 2]))
        return made

    def dense(self, index: int) -> Path:
        """File of the states entering block `index` of the dense model, which extract stored."""
        return verified(ACTIVATIONS, block_file(index, activations_suffix(self._manifest)), self._manifest)

    def keep(self, index: int, keys: list[str], write: Callable[[Path, str, torch.dtype], None]) -> None:
        """Store the output of block `index`, written by `write(path, format, dtype)`; keys: of the blocks up to it."""
        self._store.make(self._key(keys[index]), lambda path: write(path, "safetensors", self._model.dtype))
        if index > 1:
            self._store.drop(self._key(keys[index - 2]))

    def forget(self, keys: list[str]) -> None:
        """Drop the stored states of all blocks with these keys."""
        for key in keys:
            self._store.drop(self._key(key))

    def _advance(self, index: int, source: Path, solutions: list[Path], target: Path) -> None:
        replaced = read_weights(solutions[index], self._model.linears(index), self._model)
        advance(self._model, index, source, target, self._chunk, "safetensors", self._model.dtype, replaced)

    def _key(self, solution: str) -> str:
        return key_of(task="entering", after=solution)
