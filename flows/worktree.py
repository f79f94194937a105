"""A git worktree of the project as it is now, for a run with other parameters than params.yaml's."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.config import Config, merge
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from flows import repro
from flows.errors import FlowError, reason_of

WORKTREES = Path(".dvc/tmp/worktrees")
SETTINGS = Path(".dvc/config.local")
SHARED = Path(".cache")


@contextmanager
def overridden(folder: Path, overrides: Sequence[str]) -> Iterator[Path]:
    """A worktree of the project as it is now, with other parameters; `folder` must be locked.

    It shares the DVC cache and the finished blocks, so nothing that is known is computed again, and goes when
    the run ends; so do those that killed runs left. Raises FlowError for a parameter that is not in params.yaml.
    """
    path = folder / WORKTREES / run_name(overrides)
    _remove_all(folder)
    try:
        _git(folder, "worktree", "add", "--detach", "--quiet", str(path), "HEAD")
        _copy_changes(folder, path)
        try:
            apply_overrides(path / "params.yaml", list(overrides))
        except DvcException as error:
            raise FlowError(f"params.yaml: {reason_of(error)}") from None
        (folder / SHARED).mkdir(exist_ok=True)
        (path / SHARED).symlink_to(folder / SHARED, target_is_directory=True)
        _configure(folder, path)
        repro.call(path, "checkout", "--allow-missing")
        yield path
    finally:
        _remove_all(folder)


def run_name(overrides: Sequence[str]) -> str:
    """A name for a run with these overrides: fit for a folder, a git reference, a DVC experiment and a person."""
    pairs = (override.partition("=") for override in overrides)
    name = "_".join(f"{parameter.rpartition('.')[2]}-{value}" for parameter, _, value in pairs)
    name = re.sub(r"[^A-Za-z0-9._]+|\.{2,}", "-", name)
    digest = hashlib.sha256("\0".join(sorted(overrides)).encode()).hexdigest()[:6]
    return f"{name[:80].strip('-.')}-{digest}"


def _copy_changes(folder: Path, path: Path) -> None:
    """What is not committed: changed, new and deleted files."""
    changed = _git(folder, "diff", "--name-only", "-z", "HEAD")
    changed += _git(folder, "ls-files", "--others", "--exclude-standard", "-z")
    for name in filter(None, changed.split("\0")):
        source, target = folder / name, path / name
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            shutil.copy2(source, target)
        elif source.is_symlink():  # to a folder
            target.symlink_to(source.resolve(), target_is_directory=True)


def _configure(folder: Path, path: Path) -> None:
    """DVC's settings of the project, those of config.local too, and the cache that it uses.

    DVC itself reads and writes them, since paths in them are relative to the file that they stand in.
    """
    try:
        with Repo(str(folder)) as repo:
            cache = repo.cache.local_cache_dir
        if (folder / SETTINGS).is_file():
            shutil.copy2(folder / SETTINGS, path / SETTINGS)  # its mode: it may hold passwords
        known = Config(str(folder / ".dvc"))
        with Config(str(path / ".dvc"), validate=False).edit("local") as settings:
            for level in Config.REPO_LEVELS:
                merge(settings, known.read(level))
            settings.setdefault("cache", {})["dir"] = cache
    except DvcException as error:
        raise FlowError(f"{folder / '.dvc'}: {reason_of(error)}") from None


def _remove_all(folder: Path) -> None:
    if (folder / WORKTREES).exists():
        shutil.rmtree(folder / WORKTREES)
    _git(folder, "worktree", "prune")


def _git(folder: Path, *command: str) -> str:
    ended = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise FlowError(f"git {command[0]}: {(ended.stderr.strip().splitlines() or ['it told no reason'])[-1]}")
    return ended.stdout
