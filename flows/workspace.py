"""The project's folder, and a lock that lets one run at a time work in it."""

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
    """The current folder; raises FlowError unless it is the project's (it holds dvc.yaml and .dvc)."""
    for name in ("dvc.yaml", ".dvc"):
        if not Path(name).exists():
            raise FlowError(f"{name} is not in {Path.cwd()}: run flows from the project's folder")
    return Path.cwd()


@contextmanager
def locked(folder: Path, tell: Callable[[str], object]) -> Iterator[int]:
    """Lock the project's folder and its worktrees, waiting for any other run; gives the lock's file descriptor."""
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
