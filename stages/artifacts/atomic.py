"""Write files and folders so that a reader sees the old one or the new one, never a part."""

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
"""Of errors that a write raises without a file's name."""
TEMPORARY = re.compile(r"(?<![^/\s'\"(])\.([^/\s'\"]+?)(?:\.\d+|\.[a-z0-9_]{8})?\.tmp(?![^/\s'\",;:)])")


def final_names(text: str) -> str:
    """`text` with the names of finished files and folders in the place of the temporary ones they are written under."""
    return TEMPORARY.sub(r"\1", text)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give the disk's errors in the body, which name no file where a write raised them, the name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK:
            error.filename = str(path)
        raise


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with naming(path):
            yield temporary
            sync(temporary)
            temporary.chmod(MODE)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path`, which takes its place if the body succeeds.

    Leftovers of runs that were killed are removed first: one process writes a folder at a time. The old folder comes
    back if the run ends between the two renames.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = path.parent / f".{path.name}.tmp", path.parent / f".{path.name}.old"
    _settle(path, temporary, old)
    temporary.mkdir()
    try:
        with naming(path):
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
    """Leave only `path`, which is the old folder where no new one took its place."""
    if old.exists() and not path.exists():
        old.rename(path)
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)


def write_json(path: Path, value: Any, sort: bool = True) -> None:
    """Write `value` as readable JSON, with sorted keys or as they come, atomically."""
    with replacing_file(path) as temporary:
        text = json.dumps(value, indent=2, sort_keys=sort, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Make sure that the bytes of `path` are on the disk before anything refers to them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system has them, else a copy."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
