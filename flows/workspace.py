"""The project's folder, and one run in it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.errors import FlowError

LOCK = Path(".dvc/tmp/secateur.lock")
POLL = 0.5


def project() -> Path:
    """The project's folder: the one at hand. Raises FlowError if it is none, or a folder inside one."""
    for name in ("dvc.yaml", ".dvc"):
        if not Path(name).exists():
            raise FlowError(f"{name} is not in {Path.cwd()}: run flows from the project's folder")
    return Path.cwd()


@contextmanager
def locked(folder: Path, tell: Callable[[str], object]) -> Iterator[int]:
    """The folder, and its worktrees, for one run alone: waits until no other has it. Gives the lock's descriptor."""
    path = folder / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    file.seek(0)
                    tell(f"waiting for the run of process {file.read().strip() or '?'} in {folder}")
                    waiting = True
                time.sleep(POLL)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()
