"""Paths of the stages' outputs, relative to the project's folder, and what to run when one is missing or corrupt."""

from __future__ import annotations

import os
from pathlib import Path

MODEL = Path("data/model")
TEXTS = Path("data/texts")
ACTIVATIONS = Path("data/activations")
STATISTICS = Path("data/statistics")
SOLUTION = Path("data/solution")
PRUNED = Path("data/pruned")
PRUNING_MANIFEST = PRUNED / "pruning_manifest.json"
ATTENTION = Path("data/attention")
SPEED = Path("data/speed")
EVALUATION = Path("data/evaluation")
REPORT = Path("data/report")
METRICS = Path("metrics")
KEY_FIGURES = METRICS / "summary.json"
COSTS = METRICS / "cost"


def block_file(index: int, suffix: str = ".safetensors") -> str:
    """Name of a block's file in the folder of any stage."""
    return f"block_{index:03d}{suffix}"


def from_project(path: Path) -> Path:
    """A relative path of params.yaml, seen from the project: flows with overrides run in a worktree elsewhere."""
    return Path(os.environ.get("SECATEUR_PROJECT", "")) / path


_OUTPUTS: dict[str, tuple[Path, ...]] = {
    "fetch": (MODEL, TEXTS),
    "extract": (ACTIVATIONS,),
    "statistics": (STATISTICS,),
    "solve": (SOLUTION,),
    "assemble": (PRUNED,),
    "compare_attention": (ATTENTION, METRICS / "attention.json"),
    "measure_speed": (SPEED, METRICS / "speed.json"),
    "evaluate_dense": (EVALUATION / "dense", METRICS / "dense.json"),
    "evaluate": (EVALUATION / "pruned", METRICS / "pruned.json"),
    "report": (REPORT, KEY_FIGURES),
}
WRITERS = {path: stage for stage, paths in _OUTPUTS.items() for path in paths} | {
    COSTS / f"{'evaluate_pruned' if stage == 'evaluate' else stage}.json": stage for stage in _OUTPUTS
}
"""Which stage of dvc.yaml writes each of its outputs."""


def how_to_make(path: Path) -> str:
    """Advice for a missing file: the stage that writes it."""
    output = _output_of(path)
    return "run the stage that writes it: `dvc repro" + ("`" if output is None else f" {WRITERS[output]}`")


def how_to_repair(path: Path) -> str:
    """Advice for a corrupt file: how to get its output back, and no more than that."""
    output = _output_of(path)
    if output is None:
        return "delete it and make it again"
    again = f"`dvc repro -f -s {WRITERS[output]}` makes it again"
    return f"`dvc checkout --force {output}` takes the last good one from DVC's cache, {again}"


def _output_of(path: Path) -> Path | None:
    return next((output for output in WRITERS if output in (path, *path.parents)), None)
