"""Runs of benchmarks/quality.py for this experiment's stages, which share workspaces and their block stores."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path("results")
BENCHMARK = Path("../../benchmarks/quality.py")


def measured(runs: Iterable[str], workspace: str, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """Figures of each run and of the dense model, of the masked model unless `assembled`.

    options: --name=value of the benchmark.
    """
    RESULTS.mkdir(exist_ok=True)
    folder = RESULTS / workspace
    target = folder / "measured.json"
    command = [sys.executable, str(BENCHMARK), str(folder), "--json", str(target)]
    if not options.pop("assembled", False):
        command.append("--masked")
    command += [f"--{name}={value}" for name, value in options.items()]
    subprocess.run([*command, *(part for run in runs for part in ("--run", run))], check=True)
    found: dict[str, list[dict[str, Any]]] = json.loads(target.read_text(encoding="utf-8"))
    return found
