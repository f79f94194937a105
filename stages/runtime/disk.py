"""Room on the disk: asked for before a stage writes what would not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.errors import SecateurError
from stages.runtime.failures import existing, sized


def need_disk(place: Path, needed: float, what: str, advice: str) -> None:
    """Raise SecateurError, with `advice`, unless the disk that `place` is or will be on has room for `needed` bytes."""
    folder = existing(place)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SecateurError(
            f"the disk is too small for {what}: expected {sized(needed)} free in {folder}, got {sized(free)}: {advice}"
        )
