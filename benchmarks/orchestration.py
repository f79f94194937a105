"""CPU seconds of bringing a project up to date in which nothing changed: `dvc repro` beside the flow.

    python benchmarks/orchestration.py FOLDER

FOLDER is a copy of the project in which `dvc repro` has run. A Prefect server is started for the flow and its
own CPU is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    environment = {**os.environ, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1"}
    environment.pop("PREFECT_API_URL", None)
    repro = [sys.executable, "-m", "dvc", "repro"]
    print("| nothing changed | wall s | CPU s |\n|---|---|---|")
    print(row("dvc repro", repro, folder, environment))
    with tempfile.TemporaryDirectory() as home:
        url, server = start_server(environment | {"PREFECT_HOME": home})
        try:
            flow = [sys.executable, "-m", "flows.pipeline"]
            print(row("the flow, server running", flow, folder, environment | {"PREFECT_API_URL": url}))
        finally:
            server.terminate()
            server.wait()


def row(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """The fastest of some runs, as a row."""
    best = min(timed(command, folder, environment) for _ in range(RUNS))
    return f"| {name} | {best[1]:.2f} | {best[0]:.2f} |"


def timed(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of a command and its children."""
    before, begin = children(), time.perf_counter()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stdout + ended.stderr)
    return children() - before, time.perf_counter() - begin


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_server(environment: dict[str, str]) -> tuple[str, subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port), "--log-level", "ERROR"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/api"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return url, server


if __name__ == "__main__":
    main()
