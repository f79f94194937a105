"""Peak memory against generation speed of the pruned checkpoints (Shen et al., Figure 5).

Writes results/speed.csv and speed.png; run in this folder. Every checkpoint is measured in turns with the dense model
by the stage `measure_speed`, with its settings in the project's params.yaml.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from measured import RESULTS, measured

from stages.params.yamlfile import read_yaml

ROOT = Path("../..").resolve()
FIGURES = ("parameters", "prefill_macs", "peak_memory_mb", "prefill", "decode")


def main() -> None:
    """Prune, assemble and measure at every sparsity, write table and figure."""
    settings = read_yaml(Path("params.yaml"))["speed"]
    method, *options = settings["run"].split()
    folder, rows = RESULTS / "workspace_speed", []
    for at in settings["sparsities"]:
        run = " ".join([method, str(at), *options])
        shared = {name: settings[name] for name in ("sequences", "threads")}
        measured([run], folder.name, assembled=True, windows=2, **shared)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(settings["threads"])}
        subprocess.run([sys.executable, "-m", "stages.measure_speed"], cwd=folder, env=environment, check=True)
        speed = json.loads((folder / "metrics/speed.json").read_text(encoding="utf-8"))
        rows.append({"sparsity": at, **speed_ratios(speed)})
    with (RESULTS / "speed.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    draw(rows)


def speed_ratios(speed: dict[str, Any]) -> dict[str, float]:
    """Memory and speed of a checkpoint as ratios to the dense model measured in the same run."""
    ratio = speed["ratio"]
    return {name: ratio[name]["median"] if isinstance(ratio[name], dict) else ratio[name] for name in FIGURES}


def draw(rows: list[dict[str, float]]) -> None:
    """Speeds over memory, both relative to the dense model."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, label in (("prefill", "prefill"), ("decode", "decode")):
        axes.plot(
            [1.0, *(row["peak_memory_mb"] for row in rows)], [1.0, *(row[name] for row in rows)], "o-", label=label
        )
    for row in rows:
        axes.annotate(f"{row['sparsity']:.0%}", (row["peak_memory_mb"], row["prefill"]), xytext=(-4, 6),
                      textcoords="offset points", ha="right", fontsize=8)  # fmt: skip
    axes.invert_xaxis()
    axes.set(xlabel="peak memory, of the dense model's", ylabel="tokens a second, of the dense model's")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(RESULTS / "speed.png", dpi=150)


if __name__ == "__main__":
    main()
