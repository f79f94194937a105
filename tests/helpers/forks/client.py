"""What `python`, `dvc` and `prefect` are on the PATH of tests: the command runs in a fork of the warm process.

    python -IS tests/helpers/forks/client.py PYTHON SHIM NAME ARGUMENT ...

PYTHON is the real Python, SHIM what sys.executable shall be, NAME what was called. Only `-m` of a package in SETTLED
for which a server listens in the folder SECATEUR_FORKS is run in a fork, and only where the environment agrees in what
the package reads when it is imported; all else becomes a real Python. Imports little: it runs often.
"""

import _signal
import _socket
import array
import fcntl
import marshal
import os
import sys

SETTLED = {"dvc": (), "flows": ("PREFECT_",), "prefect": ("PREFECT_",), "stages": ("OMP_", "TORCH_")}
"""By package, how variables begin that a fork cannot change any more."""
PASSED_ON = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def inherited() -> list[int]:
    """Open files that this process was given, not those that its Python opened."""
    files = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                files.append(int(name))
        except OSError:  # the listing's own
            continue
    return files


def run(server: _socket.socket, shim: str, module: str, arguments: "list[str]") -> int:
    """Have the server run a module with what this process has; gives its exit code, negative for a signal."""
    files, umask = inherited(), os.umask(0o22)
    os.umask(umask)
    files.remove(server.fileno()) if server.fileno() in files else None
    request = {
        "module": module, "arguments": arguments, "executable": shim, "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ), "files": files, "umask": umask, "limits": {}, "seconds": 0,
        "ignored": [int(one) for one in PASSED_ON if _signal.getsignal(one) == _signal.SIG_IGN],
    }  # fmt: skip
    for number in PASSED_ON:
        if number not in request["ignored"]:
            _signal.signal(number, lambda given, _: server.send(marshal.dumps(given)))
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files).tobytes())
    server.sendmsg([marshal.dumps(request)], [rights])
    answer = server.recv(4096)
    return marshal.loads(answer)["code"] if answer else -_signal.SIGKILL


def connected(package: str) -> "_socket.socket | None":
    """A connection to the package's server, if there is one whose environment agrees with this process's."""
    path = f"{os.environ.get('SECATEUR_FORKS')}/{package}"
    try:
        with open(path + ".environment", "rb") as file:  # noqa: PTH123
            if settled(marshal.load(file), package) != settled(os.environ, package):
                return None
        server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        server.connect(path)
    except OSError:
        return None
    return server


def settled(environment: "dict[str, str]", package: str) -> "dict[str, str]":
    """The variables that a fork cannot change any more."""
    return {name: value for name, value in environment.items() if name.startswith(SETTLED[package])}


def main() -> None:
    """Run the command in a fork, or become a real Python."""
    python, shim, name, *arguments = sys.argv[1:]
    if name != "python":
        arguments = ["-m", name, *arguments]
    package = arguments[1].partition(".")[0] if len(arguments) > 1 and arguments[0] == "-m" else ""
    server = connected(package) if package in SETTLED else None
    if server is None:
        os.execv(python, [python, *arguments])
    code = run(server, shim, arguments[1], arguments[2:])
    if code < 0:
        if -code != _signal.SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
