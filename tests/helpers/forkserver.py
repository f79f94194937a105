"""Runs `python -m MODULE ...` as a shell would, each in a fork of one process that has imported the libraries.

    python -m tests.helpers.forkserver MODULE ...      modules to import

Reads a request a line from stdin ({module, arguments, folder, environment, limits, stdout, stderr, seconds}), answers
{code} on stdout. A command so takes a tenth of a second, not the five that importing torch and transformers takes.
The process itself computes nothing: a fork after OpenMP has made threads would hang.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import threading
from typing import Any

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def limit(file_bytes: int | None, address_bytes: int | None, writes_anywhere: bool) -> None:
    """Put limits on this process and its children."""
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if address_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    if not writes_anywhere and os.geteuid() == 0:
        _obey_permissions()


def _obey_permissions() -> None:
    """Give up root's right to write where the mode forbids it, for this process and what it executes."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for word in range(3):  # effective, permitted, inheritable of the capabilities below 32
        sets[word] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def _become(request: dict[str, Any]) -> None:
    """Make this fork the process that the request describes."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for stream, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(path, flags, 0o644), stream)
    signal.alarm(request["seconds"])
    limit(**request["limits"])


def _run(module: str) -> int:
    """Run a module as `python -m` does; gives the exit code. Exit handlers run, but the memory is not taken apart."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def serve() -> dict[str, Any] | None:
    """Answer requests; gives, in a fork, its request, and None at the end."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            return request
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"code": code}), file=answers, flush=True)
    return None


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection in a fork copies all of the memory
    asked = serve()
    if asked is not None:
        _become(asked)
        sys.path[0] = asked["folder"]
        sys.argv = [asked["module"], *asked["arguments"]]
        sys.modules.pop(asked["module"], None)
        os._exit(_run(asked["module"]))
