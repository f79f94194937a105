"""Perplexity against the number of calibration sequences (Shen et al., Figure 4).

Writes results/samples.csv and samples.png; run in this folder.
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.figure import Figure
from measured import RESULTS, measured

from stages.params.yamlfile import read_yaml


def main() -> None:
    """Measure every pair of a number and a sparsity, write table and figure."""
    settings = read_yaml(Path("params.yaml"))["samples"]
    method, *options = settings["run"].split()
    rows = []
    for count in settings["sequences"]:
        runs = {at: " ".join([method, str(at), *options]) for at in settings["sparsities"]}
        shared = {name: settings[name] for name in ("windows", "threads")}
        found = measured(runs.values(), f"workspace_{count}", sequences=count, **shared)
        rows += [(count, at, found[run][0]["perplexity"]) for at, run in runs.items()]
    with (RESULTS / "samples.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sequences", "sparsity", "perplexity"), *rows])
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for at in settings["sparsities"]:
        points = [(count, value) for count, sparsity, value in rows if sparsity == at]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{at:.0%}")
    axes.set(xscale="log", yscale="log", xlabel="calibration sequences of 512 tokens", ylabel="perplexity")
    axes.set_xticks(settings["sequences"], [str(count) for count in settings["sequences"]])
    axes.xaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.grid(alpha=0.3)
    axes.legend(title="removed")
    figure.savefig(RESULTS / "samples.png", dpi=150)


if __name__ == "__main__":
    main()
