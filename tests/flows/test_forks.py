"""A command that runs in a fork of a warm process ends as a process of its own does: tests rest on it."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.helpers.committed import Project
from tests.helpers.forks.start import forked
from tests.helpers.waiting import wait_for

ENDS = {
    "returns": "print(sys.argv[1:], os.getcwd(), os.environ['ASKED'], sys.stdin.read(), __name__)",
    "code": "sys.exit(7)",
    "text": "sys.exit('a reason')",
    "signal": "os.kill(os.getpid(), signal.SIGTERM)",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)",
    "thread": "threading.Timer(0.1, print, ['later']).start(); atexit.register(print, 'last')",
}
WAITS = "pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"


@pytest.fixture
def project(tmp_path, forks):
    (tmp_path / "stages").mkdir()
    for name, line in {"__init__": "", **ENDS, "waits": WAITS, "warm": "print('torch' in sys.modules)"}.items():
        imports = "import atexit, os, pathlib, signal, sys, threading, time\n" if line else ""
        (tmp_path / f"stages/{name}.py").write_text(imports + line, encoding="utf-8")
    made = Project(tmp_path)
    made.environment = {**forked(forks, made.environment), "ASKED": "one two"}
    return made


def ended(project, forked, *command):
    environment = {name: value for name, value in project.environment.items() if forked or name != "SECATEUR_FORKS"}
    done = subprocess.run(
        command, cwd=project.folder, env=environment, input="given", capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.splitlines()[-1:]


def test_a_stage_runs_in_a_fork_and_nothing_else_does(project):
    assert ended(project, True, "python", "-m", "stages.warm")[:2] == (0, "True\n")
    assert ended(project, False, "python", "-m", "stages.warm")[:2] == (0, "False\n")
    assert ended(project, True, "python", "-c", "import sys; print('torch' in sys.modules)")[:2] == (0, "False\n")


@pytest.mark.parametrize("name", ENDS)
def test_a_fork_tells_and_ends_as_a_process_does(name, project):
    command = ("python", "-m", f"stages.{name}", "a", "b c")
    assert ended(project, True, *command) == ended(project, False, *command)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_the_fork_and_ends_it(number, project):
    process = project.start("python", "-m", "stages.waits", output=subprocess.DEVNULL)
    wait_for(lambda: (project.folder / "pid").exists() and (project.folder / "pid").read_text(), 30)
    pid = int((project.folder / "pid").read_text())
    assert pid != process.pid
    process.send_signal(number)
    assert process.wait(30) == -number
    wait_for(lambda: not is_alive(pid), 30)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
