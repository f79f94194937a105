"""One block's work for a stage: its key in the block store, the function that does it, its result; who runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from stages.artifacts.store import BlockStore
from stages.errors import SecateurError
from stages.runtime.failures import BlockError

Work = Callable[[Path], Mapping[str, float] | None]
"""Writes a block's result to a path; may give figures (seconds) to add up over the blocks."""
NOUNS = {
    "evaluate": "group of windows {}",
    "gates": "the training of gates",
    "gate_powers": "the scales of gates",
    "samples": "group of images {}",
    "sample_features": "the features of group of images {}",
    "reference_features": "the features of group {} of reference images",
    "draw": "group of images {}",
    "encode": "group of images {}",
}
"""How errors name the pieces of tasks whose pieces are no blocks."""


@dataclass(frozen=True)
class Block:
    """The name of a piece of work: task (extract, solve, ...), block index, and the key its result is filed under.

    suffix: of the result's file in the block store.
    """

    task: str
    index: int
    key: str
    suffix: str = ".safetensors"

    @property
    def name(self) -> str:
        """Its name on Prefect's page."""
        return f"{self.task} {self.index}"

    @property
    def label(self) -> str:
        """Its name in errors."""
        return NOUNS[self.task].format(self.index) if self.task in NOUNS else f"block {self.index}"


@dataclass(frozen=True)
class BlockResult:
    """The file of a block's result, whether it was made in this run, and the figures of making it."""

    path: Path
    made: bool
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerContext:
    """Working directory and torch thread count that a worker takes over, since a block's bits depend on them."""

    folder: Path
    threads: int

    @classmethod
    def here(cls) -> WorkerContext:
        """The folder and thread count of this process."""
        return cls(Path.cwd(), torch.get_num_threads())

    def enter(self) -> None:
        """Make this process (a worker's) work there."""
        if Path.cwd() != self.folder:
            os.chdir(self.folder)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


def perform(block: Block, work: Work) -> BlockResult:
    """The block's result from the store; where there is none, the one `work` makes.

    Raises SecateurError as `work` does, and BlockError, which names the block, for any other exception.
    """
    figures = dict[str, float]()
    try:
        store = BlockStore(block.task)
        stored = store.find(block.key, block.suffix)
        if stored is not None:
            return BlockResult(stored, made=False)
        path = store.make(block.key, lambda temporary: figures.update(work(temporary) or {}), block.suffix)
    except SecateurError:
        raise
    except Exception as error:
        raise BlockError.of(error, block.label) from error
    return BlockResult(path, made=True, figures=figures)


def perform_at(context: WorkerContext, block: Block, work: Work) -> BlockResult:
    """`perform` in a worker: another thread or process, which takes over folder and threads first."""
    context.enter()
    return perform(block, work)


def attempt_at(context: WorkerContext, block: Block, work: Work) -> BlockResult | Exception:
    """`perform_at`, returning its error: Dask would log one that is raised, with a traceback."""
    try:
        return perform_at(context, block, work)
    except Exception as error:
        return error


class BlockRunner(Protocol):
    """Does the work of blocks: in this process, on threads, on Dask or as Prefect tasks."""

    def run_stage(self, name: str, main: Callable[[], None]) -> None:
        """Run a stage's main function, whose blocks come to this runner."""
        ...

    def run_block(self, block: Block, work: Work) -> BlockResult:
        """The result of one block's work, now."""
        ...

    def run_blocks(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[BlockResult]:
        """The results of blocks that do not need each other; `tick` is called after each.

        `work` must be a module's function, or a partial of one, so that another process can take it.
        """
        ...
