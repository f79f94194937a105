"""Ends a failed stage: one line on stderr, a log with the traceback, the last good outputs put back, an exit code.

Errors of our own say themselves what to do. Any other exception is described here: what it was, in which block, in
which file and line, and what helps where the memory or the disk was too small.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from stages.artifacts.atomic import final_names
from stages.errors import SecateurError, UnreachableError

LOGS = Path(".cache/logs")
KEPT = 20
"""Logs that are kept; older ones are deleted."""
LONGEST = 400
"""Characters of a foreign message that are shown; the log has all of it."""
FAILED, STOPPED = 2, 130
NO_MEMORY = "allocate memory", "not enough memory", "out of memory", "bad_alloc", "CUBLAS_STATUS_ALLOC_FAILED"
NO_ROOM = "No space left on device", "Disk quota exceeded"
"""What libraries say whose exceptions carry no errno."""
MORE_MEMORY = (
    "lower compute.chunk or workers.held_gb, or workers.count where it is more than 1, or close other programs; "
    "finished blocks are kept"
)
log = logging.getLogger("secateur")


class BlockError(Exception):
    """A foreign exception raised in the work of a block; crosses processes as its two texts.

    line:  what happened, the block first.
    trace: the traceback.
    """

    def __init__(self, line: str, trace: str) -> None:
        super().__init__(line, trace)
        self.line, self.trace = line, trace

    @classmethod
    def of(cls, error: BaseException, place: str) -> Self:
        """The failure `error` of the block called `place`."""
        return cls(f"{place}: {describe(error)}", "".join(traceback.format_exception(error)))

    def __str__(self) -> str:
        return self.line


def end_failed(stage: str, error: BaseException) -> int:
    """Print in one line why a stage failed, put its last outputs back, and give the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return _end(stage, "stopped; finished blocks are kept, run again to go on", STOPPED)
    if isinstance(error, UnreachableError):
        return _end(stage, str(error), kind="network error")
    if isinstance(error, SecateurError):
        return _end(stage, str(error))
    return _end(stage, f"{describe(error)}; the traceback is in {_logged(stage, error)}")


def describe(error: BaseException) -> str:
    """An exception in one line: what was too small and what helps, or its kind, message and place in our code."""
    if isinstance(error, BlockError):
        return error.line
    for one in _chain(error):
        if isinstance(one, MemoryError) or type(one).__name__ == "OutOfMemoryError" or _says(one, NO_MEMORY):
            return f"out of memory ({_shortened(one)}): {MORE_MEMORY}"
        if type(one).__name__ == "KilledWorker":
            return f"Dask's workers died at it, one after another ({_shortened(one)}): if memory ran out, {MORE_MEMORY}"
        if (line := _describe_disk(one)) is not None:
            return line
    return f"{_shortened(error)}{_place_of(error)}"


def nearest_existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(one for one in (path, *path.parents) if one.exists())


def readable_size(count: float) -> str:
    """A number of bytes in MB or GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _describe_disk(error: BaseException) -> str | None:
    """In one line, what is wrong with the disk or the permissions of a file; None if nothing is."""
    number = error.errno if isinstance(error, OSError) else None
    name = (error.filename2 or error.filename) if isinstance(error, OSError) else None
    path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or _says(error, NO_ROOM):
        folder = nearest_existing(path.parent) if path else Path.cwd()
        what = "the disk quota is used up" if number == errno.EDQUOT else "the disk is full"
        free = f"{readable_size(shutil.disk_usage(folder).free)} free in {folder}"
        return (
            f"{what}: {path or 'a file'} could not be written ({free}): free some there (`make clean-store` forgets "
            "the finished blocks in .cache/blocks), then run again"
        )
    if number == errno.EFBIG:
        return (
            f"{path or 'a file'} could not be written: it is larger than files may be here: raise the limit "
            "(`ulimit -f`) or use another file system"
        )
    if path is None or number not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return None
    if number != errno.EROFS and path.exists() and not os.access(path, os.R_OK):
        return f"{path} cannot be read ({error.strerror}): allow it to be read"  # type: ignore[attr-defined]
    folder = nearest_existing(path.parent)
    reason = "its file system is read-only" if number == errno.EROFS else str(getattr(error, "strerror", error)).lower()
    return f"{path} cannot be written, {reason}: expected a folder to write to, got {folder}: allow it to be written"


def _says(error: BaseException, signs: tuple[str, ...]) -> bool:
    """Whether the message of an exception that carries no errno holds one of `signs`."""
    text = str(error).lower()
    return getattr(error, "errno", None) in (None, errno.ENOMEM) and any(sign.lower() in text for sign in signs)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, its cause, the cause's cause, ..."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _shortened(error: BaseException) -> str:
    text, name = " ".join(str(error).split()), type(error).__name__
    return f"{name}: {text if len(text) <= LONGEST else text[:LONGEST] + '…'}" if text else name


def _place_of(error: BaseException) -> str:
    """The line of this package that raised it, and the file at work there: the last local variable of type Path."""
    root = Path(__file__).parents[1]
    frames = [
        (frame, line) for frame, line in traceback.walk_tb(error.__traceback__)
        if root in Path(frame.f_code.co_filename).parents
    ]  # fmt: skip
    if not frames:
        return ""
    place = f"{Path(frames[-1][0].f_code.co_filename).relative_to(root.parent)}, line {frames[-1][1]}"
    paths = [value for frame, _ in frames for value in frame.f_locals.values() if isinstance(value, Path)]
    return f" ({place}{f', at work on {paths[-1]}' if paths else ''})"


def _logged(stage: str, error: BaseException) -> str:
    """Write the traceback to a log of its own; gives the log's path, or why there is none."""
    path = LOGS / f"{stage}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    head = f"{' '.join(sys.argv)}\nPython {platform.python_version()}, {platform.platform()}, in {Path.cwd()}\n\n"
    inner = f"\nIn the block:\n{error.trace}" if isinstance(error, BlockError) else ""
    trace = "".join(traceback.format_exception(error, chain=not inner))
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        path.write_text(head + trace + inner, encoding="utf-8", errors="backslashreplace")
        for old in sorted(LOGS.glob("*.log"), key=lambda one: one.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError as second:
        return f"no log, as {path} could not be written ({second.strerror})"
    return str(path)


def _end(stage: str, message: str, code: int = FAILED, kind: str = "error") -> int:
    with suppress(OSError):  # a reader of stderr that has gone must not keep the outputs from coming back
        print(f"{stage}: {kind}: {final_names(' '.join(message.split()))}", file=sys.stderr, flush=True)
    _bring_back_last_outputs()
    return code


def _bring_back_last_outputs() -> None:
    """DVC deletes a stage's outputs before it runs: after a failure, take the last good ones from its cache."""
    stage, lock = os.environ.get("DVC_STAGE"), Path("dvc.lock")
    if not stage or not lock.is_file() or f"\n  {stage}:\n" not in lock.read_text(encoding="utf-8"):
        return
    command = [sys.executable, "-m", "dvc", "checkout", "--quiet", "--force", stage]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode == 0:
        log.info("the outputs of the last successful run are back in place")
    else:
        reason = " ".join(ended.stderr.split())[:LONGEST] or f"exit code {ended.returncode}"
        log.error("the outputs of the last successful run could not be put back (%s): run dvc checkout", reason)
