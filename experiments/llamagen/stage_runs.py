"""Stages of the project run in workspaces, each in a fork of this process, which has imported them but never computed.

Importing torch and transformers takes a stage longer than its work on a small model. OpenMP's threads do not survive a
fork, so the process that forks must not have computed anything.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

FORK = multiprocessing.get_context("fork")
ROOT = Path("../..").resolve()
Job = tuple[Callable[..., None], tuple[Any, ...]]


def run_stage(workspace: Path, stage: str, *arguments: str) -> None:
    """`python -m stages.<stage>` in `workspace`; its output goes to workspace/log.txt.

    Raises RuntimeError with the log's last line if it fails.
    """
    process = FORK.Process(target=_stage, args=(workspace, stage, arguments))
    process.start()
    process.join()
    log = workspace / "log.txt"
    if process.exitcode:
        lines = log.read_text(encoding="utf-8").strip().splitlines()
        raise RuntimeError(f"{workspace}: {stage} ended with {process.exitcode}: {lines[-1] if lines else 'no output'}")


def _stage(workspace: Path, stage: str, arguments: Sequence[str]) -> None:
    os.chdir(workspace)
    with Path("log.txt").open("a", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    sys.argv = [f"stages.{stage}", *arguments]
    runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)


def run_jobs(jobs: Sequence[Job], workers: int) -> None:
    """Call every job in a fork of its own, `workers` at a time; raises RuntimeError if one fails, the others ended."""
    waiting, running = list(reversed(jobs)), list[BaseProcess]()
    while waiting or running:
        while waiting and len(running) < workers:
            function, arguments = waiting.pop()
            running.append(FORK.Process(target=function, args=arguments))
            running[-1].start()
        multiprocessing.connection.wait([process.sentinel for process in running])
        ended = [process for process in running if not process.is_alive()]
        running = [process for process in running if process not in ended]
        if any(process.exitcode for process in ended):
            for process in running:
                process.terminate()
            raise RuntimeError("a pruning failed: its last lines are above, its log is in its workspace")
