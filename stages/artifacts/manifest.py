"""manifest.json of an output folder: the facts it was made from, and the sha256 of every file, checked on reading."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.artifacts.atomic import write_json
from stages.artifacts.places import how_to_make, how_to_repair
from stages.errors import ArtifactError

NAME = "manifest.json"


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_of(folder: Path) -> dict[str, str]:
    """sha256 of every file in `folder` and the folders inside, by path relative to it; manifests left out."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != NAME)
    return {str(path.relative_to(folder)): sha256_of(path) for path in paths}


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write manifest.json of `folder`: `facts`, and the sha256 of every file in it, by relative path."""
    write_json(folder / NAME, {**facts, "files": hashes_of(folder)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder that a stage wrote; raises ArtifactError if there is none."""
    return read_json(folder / NAME)


class Facts(dict[str, Any]):
    """A JSON object read from `path`, nested ones too; a missing key raises ArtifactError that names the file."""

    path: Path

    def __missing__(self, key: str) -> Any:
        raise ArtifactError(f"{self.path}: expected {key!r} in it, got {sorted(self)}: {how_to_repair(self.path)}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that a stage wrote; raises ArtifactError if the file is missing or corrupt, or lacks a key."""

    def facts(value: dict[str, Any]) -> Facts:
        made = Facts(value)
        made.path = path
        return made

    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), object_hook=facts)
        if not isinstance(value, dict):
            raise ValueError(f"expected an object, got {type(value).__name__}")
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: {how_to_make(path)}") from None
    except ValueError as error:
        raise ArtifactError(f"{path} is corrupt ({error}): {how_to_repair(path)}") from None
    return value


def trusts_code(manifest: Mapping[str, Any]) -> bool:
    """Whether the code of the model that a manifest's `source` tells of may run (fetch.model.trust_remote_code)."""
    return bool(manifest.get("source", {}).get("trust_remote_code", False))


def identity_of(folder: Path) -> str:
    """sha256 of a folder's manifest: it changes when any file or fact does."""
    read_manifest(folder)
    return sha256_of(folder / NAME)


def verify_all(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise ArtifactError unless every file that the manifest lists is in `folder`, with the bytes that it tells."""
    for name in manifest["files"]:
        verified(folder, name, manifest)


def verified(folder: Path, name: str, manifest: Mapping[str, Any]) -> Path:
    """Path of file `name` of `folder`; raises ArtifactError unless its sha256 is the manifest's."""
    path, expected = folder / name, manifest["files"].get(name)
    if expected is None:
        raise ArtifactError(f"{folder / NAME} does not list {name}: {how_to_repair(path)}")
    if not path.is_file():
        raise ArtifactError(f"{path} is missing: {how_to_repair(path)}")
    digest = sha256_of(path)
    if digest != expected:
        raise ArtifactError(
            f"{path} is corrupt: expected sha256 {expected[:12]}…, got {digest[:12]}…: {how_to_repair(path)}"
        )
    return path
