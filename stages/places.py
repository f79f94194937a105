"""Where the stages keep their outputs, seen from the project's folder."""

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
    """A relative path of params.yaml, seen from the project: a flow's run with overrides is in a worktree elsewhere."""
    return Path(os.environ.get("SECATEUR_PROJECT", "")) / path
