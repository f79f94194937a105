"""Checks for free disk space, made before a stage writes what would not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.artifacts.store import FOLDER
from stages.errors import SecateurError
from stages.runtime.failures import nearest_existing, readable_size


def need_disk(place: Path, needed: float, what: str, advice: str) -> None:
    """Raise SecateurError, with `advice`, unless the disk that `place` is or will be on has room for `needed` bytes."""
    folder = nearest_existing(place)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SecateurError(
            f"the disk is too small for {what}: expected {readable_size(needed)} free in {folder}, got "
            f"{readable_size(free)}: {advice}"
        )


def need_disk_for_blocks(output: Path, size: int, blocks: int, missing: int, what: str, advice: str) -> None:
    """Raise SecateurError unless the results of the `missing` blocks, `size` bytes each, fit on the disk.

    Where the block store and the stage's output are on two disks, all `blocks` are copied to the second.
    """
    need_disk(FOLDER, size * missing, what, advice)
    if nearest_existing(FOLDER).stat().st_dev != nearest_existing(output.parent).stat().st_dev:
        need_disk(output.parent, size * blocks, what, advice)
