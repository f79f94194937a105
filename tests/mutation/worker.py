"""Runs tests against mutants, each in a fork of one process that has imported the libraries but not the project.

Works in a copy of the tree, its current folder: a mutant is written into the file itself, so that processes
that a test starts and keys that hash the source see it too.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

START = 30.0
"""Seconds that pytest may take to start."""

SLOWER = 8.0
"""Tests that take this many times their usual seconds hang."""

Outcome = tuple[int | str, list[str]]

STAGES = """
import importlib, pkgutil, sys, stages
for module in pkgutil.walk_packages(stages.__path__, "stages."):
    if not module.name.endswith("_cuda"):
        importlib.import_module(module.name)
print("\\n".join(name for name in sys.modules if name.split(".")[0] not in ("stages", "tasks", "__main__")))
"""


def preload() -> None:
    """Imports every library that the stages import; the stages themselves are left to the forks."""
    listed = subprocess.run([sys.executable, "-c", STAGES], capture_output=True, text=True, check=True).stdout
    for name in listed.split():
        with suppress(ImportError):  # modules that a library makes under names of its own
            importlib.import_module(name)


class _Failures:
    """Pytest plugin: tells the parent process which tests fail."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())


def _run_in_child(tests: list[str], options: list[str], pipe: int, log: Path, kernels: Path | None) -> int:
    os.setsid()
    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    if kernels is not None:
        import numba

        os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(kernels)
    return int(pytest.main([*tests, *options, "-q", "-p", "no:cacheprovider"], plugins=[_Failures(pipe)]))


def run(
    tests: list[str], seconds: float, stop: bool = True, fresh_kernels: bool = False
) -> tuple[int | str, list[str]]:
    """Exit status of pytest on the tests, or "time" or "signal N", and the tests that failed.

    seconds: usual time of these tests.
    fresh_kernels: numba compiles what it needs anew: its cache does not tell a changed kernel's callers.
    """
    scratch = Path(tempfile.mkdtemp(prefix="mutant-"))
    options = [f"--basetemp={scratch / 'tests'}", *(["-x"] if stop else [])]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 3
        try:
            kernels = scratch / "kernels" if fresh_kernels else None
            status = _run_in_child(tests, options, writing, scratch / "log", kernels)
        finally:
            os._exit(status)
    os.close(writing)
    handle = os.pidfd_open(child)
    ended, _, _ = select.select([handle], [], [], START + SLOWER * seconds)
    with suppress(ProcessLookupError):  # what its tests have started ends with it
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(handle)
    with os.fdopen(reading) as pipe:
        failed = pipe.read().split("\n")[:-1]
    log = (scratch / "log").read_text(errors="replace") if (scratch / "log").exists() else ""
    shutil.rmtree(scratch, ignore_errors=True)
    if not ended:
        return "time", failed
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}", failed
    code = os.WEXITSTATUS(status)
    if code == pytest.ExitCode.INTERNAL_ERROR:
        raise RuntimeError(f"pytest failed on {tests[:3]}:\n{log[-3000:]}")
    return code, failed


@contextmanager
def written(path: Path, code: str) -> Iterator[None]:
    """The file holds `code`, then what it held, with the times that compiled files are checked against."""
    before, times = path.read_bytes(), path.stat()
    path.write_text(code)
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def killed_by(path: Path, code: str, tests: list[str], seconds: float) -> str:
    """What notices the mutant: a test's name, "import", "time" or a signal; empty where nothing does."""
    start = time.monotonic()
    with written(path, code):
        status, failed = run(tests, seconds, fresh_kernels="kernels" in path.parts)
        if status == pytest.ExitCode.USAGE_ERROR:  # the mutant renames tests: parameters made from what it changes
            files = sorted({test.partition("::")[0] for test in tests})
            status, failed = run(files, seconds + 60, fresh_kernels="kernels" in path.parts)
    print(f"  {time.monotonic() - start:.1f} s of {seconds:.1f} s", flush=True)
    if status == pytest.ExitCode.OK:
        return ""
    if failed:
        return failed[0]
    return "import" if isinstance(status, int) else status
