"""Perplexity and solver seconds of methods, by one protocol, through the pipeline's own stages.

    python benchmarks/quality.py FOLDER CALIBRATION.txt EVALUATION.txt [--runs sparsegpt:0.5,wanda:2:4] [--chunks 8,4]

FOLDER is a scratch workspace, kept. The model is the one of params.yaml, in float32. Calibration: 32
windows of 512 tokens, seed 0; evaluation: the first 40 windows of 512 tokens, side by side, no BOS; `<unk>`
is read as `unk`; pruned inputs; all linears of all blocks.

Several `--chunks` repeat everything with another grouping of the same sequences, which changes nothing but
the order of additions: the scatter of the perplexity is the resolution of such a comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--runs", default="magnitude:0.5,wanda:0.5,sparsegpt:0.5")
    parser.add_argument("--chunks", default="8")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for chunk in map(int, options.chunks.split(",")):
        settings = settings_of(options.calibration.resolve(), options.evaluation.resolve(), chunk)
        write(options.folder, settings)
        if not (options.folder / "data/texts").exists():
            stage(options.folder, "fetch")
        stage(options.folder, "extract")
        stage(options.folder, "statistics")
        if "dense" not in results:
            stage(options.folder, "evaluate", "dense")
            results["dense"] = [{"perplexity": perplexity(options.folder, "dense"), "cpu": 0.0, "peak": 0}]
        for run in options.runs.split(","):
            results.setdefault(run, []).append(prune(options.folder, settings, run))
            print(run, "chunk", chunk, results[run][-1], file=sys.stderr, flush=True)
    print(table(results))


def settings_of(calibration: Path, evaluation: Path, chunk: int) -> dict[str, Any]:
    """params.yaml for the protocol."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    text = {"source": "local", "replace": {"<unk>": "unk"}}
    settings["fetch"]["calibration"] = {**text, "path": str(calibration)}
    settings["fetch"]["evaluation"] = {**text, "path": str(evaluation)}
    settings["compute"] = {"device": "auto", "dtype": "auto", "chunk": chunk}
    settings["calibration"] = {"sequences": 32, "length": 512, "seed": 0}
    protocol = {"window": 512, "stride": 512, "bos": False, "windows": 40}
    settings["evaluate"] = {"perplexity": protocol, "tasks": {"names": []}}
    return settings


def prune(folder: Path, settings: dict[str, Any], run: str) -> dict[str, Any]:
    """Solve, assemble and measure one run, `method:sparsity` or `method:N:M`."""
    method, _, amount = run.partition(":")
    pattern = {"pattern": amount} if ":" in amount else {"sparsity": float(amount)}
    write(folder, {**settings, "solve": {"method": method, "sparsity": 0.5, "inputs": "pruned", **pattern}})
    stage(folder, "solve")
    cost = json.loads((folder / "metrics/cost/solve.json").read_text(encoding="utf-8"))
    stage(folder, "assemble")
    stage(folder, "evaluate", "pruned")
    return {
        "perplexity": perplexity(folder, "pruned"),
        "cpu": cost["solver_cpu_seconds"],
        "peak": cost["peak_memory_mb"],
        "restored": cost["blocks_restored"],
    }


def write(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "params.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def stage(folder: Path, *command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(THREADS)}
    line = [sys.executable, "-m", f"stages.{command[0]}", *command[1:]]
    subprocess.run(line, cwd=folder, env=environment, check=True)


def perplexity(folder: Path, model: str) -> float:
    value = json.loads((folder / f"metrics/{model}.json").read_text(encoding="utf-8"))["perplexity"]["value"]
    return float(value)


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """A Markdown table: mean and range over the chunks."""
    lines = ["| run | perplexity | lowest, highest | solver CPU s | peak MB of solve |", "|---|---|---|---|---|"]
    for run, found in results.items():
        values = [one["perplexity"] for one in found]
        timed = [one["cpu"] for one in found if not one.get("restored")]
        seconds = f"{statistics.mean(timed):.1f}" if timed else "restored"
        span = f"{min(values):.3f}, {max(values):.3f}" if len(values) > 1 else ""
        lines.append(f"| {run} | {statistics.mean(values):.3f} | {span} | {seconds} | {found[-1]['peak']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
