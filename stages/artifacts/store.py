"""The block store: files of finished blocks, by the hash of all that they follow from.

A stage that is killed finds its finished blocks here when it runs again. The store is outside the
stages' outputs (DVC deletes those before a stage runs), one file and its sha256 a block:
`.cache/blocks/<task>/<key>.safetensors`. A missing or corrupt file is simply not there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.artifacts.atomic import link_or_copy, replacing_file
from stages.artifacts.manifest import sha256_of
from stages.artifacts.places import block_file

FOLDER = Path(".cache/blocks")
SUFFIXES = ".safetensors", ".parquet"


def key_of(**facts: Any) -> str:
    """sha256 of what a result follows from: task, code version, inputs' hashes, parameters."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class BlockStore:
    """The files of one task (extract, solve, ...) by key, a sha256 beside each."""

    def __init__(self, task: str, folder: Path = FOLDER) -> None:
        self._folder = folder / task
        self._folder.mkdir(parents=True, exist_ok=True)

    def find(self, key: str, suffix: str = ".safetensors") -> Path | None:
        """The intact file with this key, or None; finding it marks it as used."""
        path = self._path(key, suffix)
        seal = path.with_suffix(".sha256")
        if not path.is_file() or not seal.is_file() or sha256_of(path) != seal.read_text(encoding="ascii").strip():
            return None
        os.utime(seal)
        return path

    def holds(self, key: str, suffix: str = ".safetensors") -> bool:
        """Whether there is a file with this key, intact or not."""
        return self._path(key, suffix).is_file()

    def make(self, key: str, write: Callable[[Path], None], suffix: str = ".safetensors") -> Path:
        """The file that `write(temporary path)` writes, filed under `key`."""
        path = self._path(key, suffix)
        with replacing_file(path) as temporary:
            write(temporary)
            digest = sha256_of(temporary)
        with replacing_file(path.with_suffix(".sha256")) as seal:
            seal.write_text(digest + "\n", encoding="ascii")
        return path

    def get(self, key: str, write: Callable[[Path], None], suffix: str = ".safetensors") -> Path:
        """The intact file with this key; where there is none, the one `write` makes."""
        return self.find(key, suffix) or self.make(key, write, suffix)

    def drop(self, key: str, suffix: str = ".safetensors") -> None:
        """Forget a result that will not be needed again."""
        path = self._path(key, suffix)
        path.with_suffix(".sha256").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _path(self, key: str, suffix: str) -> Path:
        return self._folder / f"{key}{suffix}"


def link_blocks(paths: Sequence[Path], folder: Path, suffix: str = ".safetensors") -> None:
    """Put the blocks' files into an output folder as block_000, block_001, ...: as hard links where there are such."""
    for index, path in enumerate(paths):
        link_or_copy(path, folder / block_file(index, suffix))


def trim(limit_bytes: float, folder: Path = FOLDER) -> int:
    """Delete the least recently used files until the store is below `limit_bytes`; gives the bytes freed."""
    seals = sorted(folder.glob("*/*.sha256"), key=lambda seal: seal.stat().st_mtime)
    sizes: Mapping[Path, int] = {path: path.stat().st_size for path in folder.glob("*/*") if path.suffix in SUFFIXES}
    excess, freed = sum(sizes.values()) - limit_bytes, 0
    for seal in seals:
        if freed >= excess:
            break
        for suffix in SUFFIXES:
            path = seal.with_suffix(suffix)
            if path in sizes:
                seal.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
                freed += sizes[path]
    return freed
