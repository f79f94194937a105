"""Write files and folders so that a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODE = 0o644


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place if the body succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        sync(temporary)
        temporary.chmod(MODE)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path`, which takes its place if the body succeeds.

    Leftovers of runs that were killed are removed first: one process writes a folder at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = path.parent / f".{path.name}.tmp", path.parent / f".{path.name}.old"
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file() and not file.stat().st_nlink > 1:
                sync(file)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON with sorted keys, atomically."""
    with replacing_file(path) as temporary:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False)
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
