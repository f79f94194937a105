"""Runs Python modules as `python -m` does, each in a fork of one process that has imported the libraries.

    python tests/helpers/forks/server.py SOCKET MODULE ...      modules to import

A command so takes a tenth of a second, not the five that importing torch and transformers takes. A client connects to
the Unix socket and sends one request (see `Request`) with its open files; it is answered {"code": exit code}, negative
where a signal ended the command. What it sends later are numbers of signals for the command; if it goes away, the
command is killed, so that whoever kills the client kills the command. The server itself computes nothing: a fork after
OpenMP has made threads would hang. It ends, and all its commands with it, when its standard input does.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import marshal
import os
import resource
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import TypedDict

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
LARGEST = 1 << 18
MOST_FILES = 64


class Request(TypedDict):
    """A command as a client describes it.

    files:      the numbers that the files sent along have in the client;
    executable: what sys.executable is there;
    ignored:    signals that the client ignores;
    limits:     of `limit`;
    seconds:    after which the command is ended, 0: none.
    """

    module: str
    arguments: list[str]
    executable: str
    folder: str
    environment: dict[str, str]
    files: list[int]
    ignored: list[int]
    umask: int
    limits: dict[str, int | bool | None]
    seconds: int


def limit(file_bytes: int | None = None, address_bytes: int | None = None, writes_anywhere: bool = True) -> None:
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


class Server:
    """Accepts clients, forks their commands, and carries signals and exit codes between them."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._woken, self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        self._commands = dict[int, socket.socket]()
        self._events = selectors.DefaultSelector()
        for file in (0, self._listener, self._woken):
            self._events.register(file, selectors.EVENT_READ)

    def serve(self) -> tuple[Request, list[int]] | None:
        """Answer clients; gives, in a fork, its request and files, and None when standard input has ended."""
        while True:
            for key, _ in self._events.select():
                if key.fileobj is self._listener:
                    self._events.register(self._listener.accept()[0], selectors.EVENT_READ)
                elif key.fd == 0:
                    if not os.read(0, 4096):
                        self._kill_all()
                        return None
                elif key.fd == self._woken:
                    os.read(self._woken, 4096)
                    self._tell_ended()
                elif isinstance(key.fileobj, socket.socket) and (accepted := self._hear(key.fileobj)):
                    return accepted

    def _hear(self, client: socket.socket) -> tuple[Request, list[int]] | None:
        """Take a client's request, a signal for its command or its end; gives the request in the fork for it."""
        if client.fileno() < 0:  # its command has ended since
            return None
        pid = next((pid for pid, one in self._commands.items() if one is client), None)
        try:
            data, files = _received(client)
        except OSError:
            data, files = b"", []
        if not data:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            self._events.unregister(client)
            client.close()
        elif pid is not None:
            os.kill(pid, marshal.loads(data))
        else:
            child = os.fork()
            if child == 0:
                self._let_go()
                return marshal.loads(data), files
            self._commands[child] = client
            for file in files:
                os.close(file)
        return None

    def _let_go(self) -> None:
        """Close, in a fork, what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._events.get_map().values()):
            if key.fd != 0:
                os.close(key.fd)
        os.close(self._wakes)
        self._events.close()
        for client in (self._listener, *self._commands.values()):
            client.detach()

    def _tell_ended(self) -> None:
        """Tell the clients of the commands that have ended their exit codes."""
        while self._commands:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            client = self._commands.pop(pid)
            if client.fileno() >= 0:
                self._events.unregister(client)
                try:
                    client.send(marshal.dumps({"code": os.waitstatus_to_exitcode(status)}))
                except OSError:  # it went away at the same moment
                    pass
                client.close()

    def _kill_all(self) -> None:
        for pid in self._commands:
            os.kill(pid, signal.SIGKILL)


def _received(client: socket.socket) -> tuple[bytes, list[int]]:
    """A message and the files that came with it."""
    data, ancillary, flags, _ = client.recvmsg(LARGEST, socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize))
    assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), "a request of too many bytes or files"
    files = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files.frombytes(content)
    return data, list(files)


def become(request: Request, files: list[int], libraries: list[str]) -> None:
    """Make this fork the process that the request describes. libraries: where installed modules are found."""
    os.setsid()
    above = max([2, *request["files"]]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, above) for file in files]
    os.closerange(0, above)
    for source, target in zip(moved, request["files"], strict=True):
        os.dup2(source, target)
    os.closerange(above, max([above, *moved]) + 1)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(request["seconds"])
    limit(**request["limits"])  # type: ignore[arg-type]
    paths = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [request["folder"], *paths, *libraries]
    sys.path_importer_cache.clear()
    sys.executable = request["executable"]
    sys.argv = [request["module"], *request["arguments"]]
    sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
    package = hasattr(sys.modules.get(request["module"]), "__path__")
    sys.modules.pop(f"{request['module']}.__main__" if package else request["module"], None)


def run(module: str) -> int:
    """Run a module as `python -m` does; gives the exit code. Exit handlers run, but the memory is not taken apart."""
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            code = end.code or 0
        else:
            print(end.code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF


def main() -> None:
    """Import the modules, then serve until standard input ends; in each fork, run its command."""
    address, *modules = sys.argv[1:]
    given = {str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    libraries = [path for path in sys.path if path not in given]
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else the first collection in a fork copies all of the memory
    server = Server(address)
    print("ready", flush=True)
    accepted = server.serve()
    if accepted is not None:
        become(*accepted, libraries)
        os._exit(run(accepted[0]["module"]))


if __name__ == "__main__":
    main()
