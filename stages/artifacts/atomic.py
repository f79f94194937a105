"""Atomic writes of files and folders: a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODE = 0o644
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)
"""errno of disk failures, which a write raises without a file's name."""
TEMPORARY = re.compile(r"(?<![^/\s'\"(])\.([^/\s'\"]+?)(?:\.\d+|\.[a-z0-9_]{8})?\.tmp(?![^/\s'\",;:)])")


def final_names(text: str) -> str:
    """`text` with the names of temporary files and folders replaced by those they will have when finished."""
    return TEMPORARY.sub(r"\1", text)


@contextmanager
def naming_disk_errors(path: Path) -> Iterator[None]:
    """Set `path` as the file name of disk errors that the body raises without one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK:
            error.filename = str(path)
        raise


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with naming_disk_errors(path):
            yield temporary
            sync(temporary)
            temporary.chmod(MODE)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path`, renamed to it if the body succeeds.

    Leftovers of runs that were killed are removed first: one process writes a folder at a time. The old folder comes
    back if the run ends between the two renames.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = path.parent / f".{path.name}.tmp", path.parent / f".{path.name}.old"
    _settle(path, temporary, old)
    temporary.mkdir()
    try:
        with naming_disk_errors(path):
            yield temporary
            for file in sorted(temporary.rglob("*")):
                if file.is_file() and not file.stat().st_nlink > 1:
                    sync(file)
            if path.exists():
                path.rename(old)
            temporary.rename(path)
    finally:
        _settle(path, temporary, old)


def _settle(path: Path, temporary: Path, old: Path) -> None:
    """Remove temporary and old folder; the old one becomes `path` again where no new one did."""
    if old.exists() and not path.exists():
        old.rename(path)
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)


def write_json(path: Path, value: Any, sort: bool = True) -> None:
    """Write `value` as indented JSON atomically, keys sorted or in their order; NaN raises ValueError."""
    with replacing_file(path) as temporary:
        text = json.dumps(value, indent=2, sort_keys=sort, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """fsync a file: its bytes are on the disk before anything refers to them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source` where the file system has them, else a copy."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
