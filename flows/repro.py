"""Run dvc as a process of its own, whose children end with it."""

from __future__ import annotations

import codecs
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from flows.errors import FlowError, NetworkFailed, StageFailed

SKIPPED, RESTORED, RAN = "Skipped", "Restored", "Ran"
SIGNS = (("Running stage", RAN), ("is cached - skipping run", RESTORED), ("didn't change, skipping", SKIPPED))
PATIENCE = {signal.SIGINT: 30.0, signal.SIGTERM: 10.0, signal.SIGKILL: 5.0}
"""Seconds to wait after each signal when a run is to end."""
POLL = 0.05
BAR = re.compile(r"\d+%\|.*\|.*\]$")
BAR_EVERY = 10.0
"""Seconds between two states of a progress bar in the log."""
ERROR_LINE = re.compile(r"^\w+: (network )?error: ")


def reproduce(
    folder: Path, stage: str, force: bool, log: Callable[[str], object], environment: Mapping[str, str], lock: int
) -> str:
    """Run one stage if DVC finds that it is not up to date; gives Skipped, Restored or Ran.

    log:  is given each line of the stage's output.
    lock: the file descriptor of the workspace's lock; dvc holds it too, so that a flow that is killed does not
          free a workspace in which its stage is still running.
    Raises StageFailed with the stage's own message; whatever ends this call ends the stage and its children.
    """
    command = ["repro", "--single-item", *(["--force"] if force else []), stage]
    outcome, last = RAN, ""
    try:
        for line in _sparse_bars(lines_of(folder, command, environment, lock)):
            log(line)
            outcome = next((name for sign, name in SIGNS if sign in line), outcome)
            if ERROR_LINE.match(line) or (line.startswith("ERROR: ") and not ERROR_LINE.match(last)):
                last = line
    except subprocess.CalledProcessError:
        kind = NetworkFailed if ": network error: " in last else StageFailed
        raise kind(last.removeprefix("ERROR: ") or f"dvc repro {stage} failed and told no reason") from None
    return outcome


def call(folder: Path, *command: str) -> str:
    """Run a short dvc command and give its output; raises FlowError with its error."""
    ended = subprocess.run(_dvc(command), cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR: ")]
        raise FlowError(f"dvc {' '.join(command)}: {(lines or ['it told no reason'])[-1].removeprefix('ERROR: ')}")
    return ended.stdout


def lines_of(folder: Path, command: list[str], environment: Mapping[str, str], lock: int) -> Iterator[str]:
    """Run a dvc command; its lines, progress bars too, as they come. At the end CalledProcessError if it failed."""
    process = subprocess.Popen(
        _dvc(command), cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(lock,),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield from _split(process.stdout)
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        _end(process)


def _sparse_bars(lines: Iterable[str]) -> Iterator[str]:
    """The lines, those of progress bars thinned out to one every BAR_EVERY seconds and their ends."""
    shown = 0.0
    for line in lines:
        if BAR.search(line) and "100%" not in line:
            if time.monotonic() - shown < BAR_EVERY:
                continue
            shown = time.monotonic()
        yield line


def _dvc(command: tuple[str, ...] | list[str]) -> list[str]:
    return [sys.executable, "-m", "dvc", *command]


def _split(output: IO[bytes]) -> Iterator[str]:
    """Non-empty lines, ended by line feeds or (progress bars) carriage returns."""
    decode, rest = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    while piece := os.read(output.fileno(), 65536):
        *lines, rest = re.split(r"[\r\n]", rest + decode(piece))
        yield from filter(None, map(str.rstrip, lines))
    if rest.strip():
        yield rest.rstrip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all of its group; first gently: stages put their last outputs back.

    Where Ctrl-C is ignored (a job that a shell put into the background), so do the children: not tried then.
    """
    for number, patience in PATIENCE.items():
        if number == signal.SIGINT and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            continue
        if not _signal(process, number):
            return
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if not _signal(process, 0):
                return
            time.sleep(POLL)


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal (0: none) to the group; whether there was anyone."""
    process.poll()
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
