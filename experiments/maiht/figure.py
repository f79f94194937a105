"""Error of IHT and mAIHT after every iteration, on real linears (Wen et al., Figure 1).

Reads ../../data/statistics (the dense model's Gram matrices) and ../../data/model; writes results/figure.csv,
results/figure.md and results/figure.png; run in this folder after `dvc repro` in the project's.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stages.linalg.error import relative_error, row_energies
from stages.linalg.masks import removed_count
from stages.linalg.schedule import SparsityPattern
from stages.linalg.sparse_fit import Recipe, sparse_fit
from stages.linalg.unit_diagonal import unit_diagonal
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.params.yamlfile import read_yaml
from stages.walk.statistics import read_statistics

RESULTS, DATA = Path("results"), Path("../../data")
VARIANTS = {
    "IHT": ("paper", False),
    "mAIHT": ("paper", True),
    "IHT, projected": ("projected", False),
    "mAIHT, projected": ("projected", True),
}
"""The schedule, and whether there is momentum."""


@dataclass(frozen=True)
class Curve:
    """One variant on one linear.

    error, kept: after every iteration, relative error f(W)/f(0) and the share of weights kept;
    refined: the relative error at the exact count, after the paper's 30 gradient steps.
    """

    linear: Linear
    variant: str
    error: list[float]
    kept: list[float]
    momentum: float
    refined: float


def main() -> None:
    """Follow every variant on every linear, write the table and the figure."""
    settings = read_yaml(Path("params.yaml"))["figure"]
    RESULTS.mkdir(exist_ok=True)
    model = StreamedModel(DATA / "model", torch.device("cpu"))
    curves = [
        curve
        for block in settings["blocks"]
        for linear in model.linears(block)
        if linear.role in settings["roles"]
        for curve in followed(model, linear, settings)
    ]
    write(curves)
    draw(curves, settings)
    text = summary(curves)
    (RESULTS / "figure.md").write_text(text, encoding="utf-8")
    print(text)


def followed(model: StreamedModel, linear: Linear, settings: dict[str, Any]) -> list[Curve]:
    """All variants on one linear."""
    files = read_statistics(DATA / f"statistics/block_{linear.block:03d}.safetensors", torch.device("cpu"))
    gram = next(one.gram for one in files if linear.name in one.linears)
    weight = model.weights.stored(linear).to(gram)
    count = weight.numel() - removed_count(weight.numel(), settings["sparsity"])
    unit = unit_diagonal(gram)
    found = []
    for name, (schedule, momentum) in VARIANTS.items():
        recipe = Recipe(schedule, settings["iterations"], 0.1, "gradient", 30)
        fit = sparse_fit(weight, gram, (SparsityPattern(len(weight), count),), recipe, momentum)
        ridged = unit.gram + 0.1 * torch.eye(len(gram))
        nothing = 0.5 * float(row_energies(weight * unit.scale, ridged).double().sum())
        steps = fit.traces[0]
        losses = [(step.objective - (step.penalty or 0.0) * step.kept) / nothing for step in steps]
        kept = [step.kept / weight.numel() for step in steps]
        accepted = sum(step.branch == "momentum" for step in steps) / len(steps)
        (refined,) = relative_error(fit.weight, weight, gram, (len(weight),))
        found.append(Curve(linear, name, losses, kept, accepted, refined))
    return found


def write(curves: list[Curve]) -> None:
    """A row for each iteration of each curve."""
    with (RESULTS / "figure.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("linear", "variant", "iteration", "relative_error", "kept"))
        for curve in curves:
            for step, values in enumerate(zip(curve.error, curve.kept, strict=True), 1):
                writer.writerow((curve.linear.name, curve.variant, step, *values))


def draw(curves: list[Curve], settings: dict[str, Any]) -> None:
    """A column for each role: the errors, a row for each block, and what is kept of the last block's linears."""
    roles, blocks = settings["roles"], settings["blocks"]
    figure = Figure(figsize=(3.4 * len(roles), 2.2 * (len(blocks) + 1)), layout="constrained")
    axes = figure.subplots(len(blocks) + 1, len(roles), sharex=True, squeeze=False)
    for column, role in enumerate(roles):
        axes[0, column].set_title(role)
        axes[-1, column].set_xlabel("iteration")
        axes[-1, column].axhline(1 - settings["sparsity"], color="grey", linewidth=0.8, linestyle=":")
        for curve in (curve for curve in curves if curve.linear.role == role):
            _line(axes[blocks.index(curve.linear.block), column], curve, curve.error)
            if curve.linear.block == blocks[-1]:
                _line(axes[-1, column], curve, curve.kept)
    for row, block in enumerate(blocks):
        axes[row, 0].set_ylabel(f"relative error\nblock {block}")
    axes[-1, 0].set_ylabel(f"share kept\nblock {blocks[-1]}")
    axes[-1, -1].legend(fontsize="small")
    figure.suptitle(f"{settings['sparsity']:.0%} asked for; errors before the last projection and the refinement")
    figure.savefig(RESULTS / "figure.png", dpi=150)


def _line(axes: Axes, curve: Curve, values: list[float]) -> None:
    colour = "tab:orange" if "projected" in curve.variant else "tab:blue"
    style = "-" if "mAIHT" in curve.variant else "--"
    axes.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, linewidth=1.3, label=curve.variant)


def summary(curves: list[Curve]) -> str:
    """Markdown: means over the linears for each variant."""
    lines = [
        "| | kept before the projection | steps from the momentum point | relative error at the exact count |",
        "|---|---|---|---|",
    ]
    for variant in VARIANTS:
        ours = [curve for curve in curves if curve.variant == variant]
        kept = [curve.kept[-1] for curve in ours]
        momentum = sum(curve.momentum for curve in ours) / len(ours)
        error = sum(curve.refined for curve in ours) / len(ours)
        lines.append(f"| {variant} | {min(kept):.3f} to {max(kept):.3f} | {momentum:.0%} | {error:.5f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
