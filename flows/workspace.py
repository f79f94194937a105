"""The project's folder, one run in it at a time; and worktrees for runs with other parameters."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.utils.hydra import apply_overrides

from flows import repro
from flows.errors import FlowError

LOCK = Path(".dvc/tmp/secateur.lock")
WORKTREES = Path(".dvc/tmp/worktrees")
SHARED = Path(".cache")
POLL = 0.5


def project() -> Path:
    """The project's folder: the one at hand. Raises FlowError if it is none."""
    if not Path("dvc.yaml").is_file():
        raise FlowError(f"dvc.yaml is not in {Path.cwd()}: run flows from the project's folder")
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


@contextmanager
def overridden(folder: Path, overrides: Sequence[str]) -> Iterator[Path]:
    """A worktree of the project as it is now, with other parameters; `folder` must be locked.

    It shares the DVC cache and the finished blocks, so nothing that is known is computed again, and goes when
    the run ends. Raises FlowError for a parameter that is not in params.yaml.
    """
    path = folder / WORKTREES / name_of(overrides)
    _remove(folder, path)
    try:
        _make(folder, path, overrides)
        yield path
    finally:
        _remove(folder, path)


def name_of(overrides: Sequence[str]) -> str:
    """A name for a run with these overrides: fit for a folder, a DVC experiment and a person."""
    told = "_".join(f"{one.partition('=')[0].rpartition('.')[2]}-{one.partition('=')[2]}" for one in overrides)
    told = re.sub(r"[^A-Za-z0-9._]+", "-", told)
    digest = hashlib.sha256("\0".join(sorted(overrides)).encode()).hexdigest()[:6]
    return f"{told[:80].strip('-.')}-{digest}"


def _make(folder: Path, path: Path, overrides: Sequence[str]) -> None:
    _git(folder, "worktree", "prune")
    _git(folder, "worktree", "add", "--detach", "--quiet", str(path), "HEAD")
    changed = _git(folder, "diff", "--name-only", "-z", "HEAD") + _git(
        folder, "ls-files", "--others", "--exclude-standard", "-z"
    )
    for name in filter(None, changed.split("\0")):
        source, target = folder / name, path / name
        target.unlink(missing_ok=True)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (folder / SHARED).mkdir(exist_ok=True)
    (path / SHARED).symlink_to(folder / SHARED, target_is_directory=True)
    cache = repro.call(folder, "cache", "dir").strip()
    repro.call(path, "cache", "dir", "--local", str((folder / cache).resolve()))
    local = folder / ".dvc/config.local"
    if local.is_file():
        text = local.read_text(encoding="utf-8")
        (path / ".dvc/config.local").write_text(text + (path / ".dvc/config.local").read_text(encoding="utf-8"))
    try:
        apply_overrides(path / "params.yaml", list(overrides))
    except DvcException as error:
        raise FlowError(f"params.yaml: {_reason(error)}") from None
    repro.call(path, "checkout", "--quiet", "--allow-missing")


def _remove(folder: Path, path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
        _git(folder, "worktree", "prune")


def _git(folder: Path, *command: str) -> str:
    ended = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FlowError(f"git {command[0]}: {(ended.stderr.strip().splitlines() or ['it told no reason'])[-1]}")
    return ended.stdout


def _reason(error: BaseException) -> str:
    """What is wrong with an override: Hydra's first line, without its name for the file."""
    cause = error.__cause__ or error
    return (str(cause).strip().splitlines() or ["it cannot be read"])[0]
