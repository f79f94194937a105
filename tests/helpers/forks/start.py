"""Starts fork servers and tells what a command's environment needs to go through them."""

from __future__ import annotations

import array
import marshal
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.helpers.forks.server import Request

HERE = Path(__file__).parent
COMMANDS = ("python", "dvc", "prefect")
LIBRARIES = (
    "transformers.models.llama.modeling_llama", "transformers.models.auto.modeling_auto", "lm_eval.evaluator",
    "lm_eval.models.huggingface", "datasets", "distributed",
)  # fmt: skip
"""What stages import that takes long."""
DVC = (
    "configobj", "dulwich.patch", "dulwich.worktree", "dvc._debug", "dvc.cachemgr", "dvc.cli.parser", "dvc.compare",
    "dvc.data_cloud", "dvc.dirs", "dvc.repo.artifacts", "dvc.repo.datasets", "dvc.repo.experiments.executor.base",
    "dvc.repo.graph", "dvc.repo.index", "dvc.repo.init", "dvc.repo.open_repo", "dvc.repo.plots", "dvc.repo.reproduce",
    "dvc.repo.stage", "dvc.repo.trie", "dvc.utils.hydra", "dvc.utils.strictyaml", "dvc.utils.studio",
    "dvc_data.hashfile.db.local", "dvc_data.hashfile.status", "dvc_data.index.checkout",
    "fsspec.implementations.memory", "hydra", "networkx", "pygit2", "ruamel.yaml",
    "scmrepo.git.backend.pygit2.filter",
)  # fmt: skip
PREFECT = (
    "anyio._backends._asyncio", "fastapi", "graphviz", "opentelemetry._logs", "prefect", "prefect.cli",
    "prefect.deployments.runner", "prefect.flow_engine", "prefect.runner", "prefect.task_engine",
    "prefect.utilities.visualization", "starlette.staticfiles",
)  # fmt: skip
"""What dvc, and what prefect and flows import besides."""


class ForkServer:
    """A process that has imported modules, and runs commands in forks of it."""

    def __init__(
        self, home: Path, packages: Iterable[str], modules: Iterable[str], environment: Mapping[str, str]
    ) -> None:
        """home: of the socket, may be another server's too. packages: those whose modules run here."""
        self._socket, *others = (home / package for package in packages)
        for link in others:
            link.symlink_to(self._socket)
        for package in (self._socket, *others):
            package.with_suffix(".environment").write_bytes(marshal.dumps(dict(environment)))
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), str(self._socket), *modules], env=dict(environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Return when it has imported all."""
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n", f"the fork server ended with {self._server.wait()}"

    def run(self, request: Request, files: Iterable[int]) -> int:
        """Run a command whose open files are these; gives its exit code, negative where a signal ended it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(self._socket))
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
            client.sendmsg([marshal.dumps(request)], [rights])
            answer = client.recv(4096)
        return int(marshal.loads(answer)["code"]) if answer else -signal.SIGKILL

    def close(self) -> None:
        """End the server and the commands that still run."""
        self._server.communicate()


def forked(home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which what the servers in `home` are warm for runs in forks of them."""
    shims = home / "bin"
    shims.mkdir(exist_ok=True)
    for name in COMMANDS:
        words = [sys.executable, "-IS", str(HERE / "client.py"), sys.executable, str(shims / "python"), name]
        (shims / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        (shims / name).chmod(0o755)
    return {**environment, "PATH": f"{shims}{os.pathsep}{environment['PATH']}", "SECATEUR_FORKS": str(home)}
