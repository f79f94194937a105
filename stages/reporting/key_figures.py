"""The few figures that runs are compared by, metrics/summary.json: the one file that DVC shows as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.artifacts.task_rows import metrics_in
from stages.reporting.speed import PHASES


def key_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Perplexity, a metric of each task, figures of samples, sparsity; of smaller checkpoints size, memory and speed.

    `size` and `memory` are pruned over dense, `prefill`, `decode` and `images` how many times as fast; they are left
    out where nothing was measured. `<name>_dense` is the dense model's. Of a task's metrics `acc` is taken, else its
    first.
    """
    dense, pruned = summary["dense"], summary["pruned"]
    figures = {"perplexity": pruned["perplexity"]["value"], "perplexity_dense": dense["perplexity"]["value"]}
    for task, row in pruned["tasks"].items():
        metric = "acc" if "acc" in row else metrics_in(row)[0]
        figures[task] = row[metric]
        if metric in dense["tasks"].get(task, {}):
            figures[f"{task}_dense"] = dense["tasks"][task][metric]
    for row in (summary["images"] or {"rows": []})["rows"]:
        figures |= {row["key"]: row["pruned"], f"{row['key']}_dense": row["dense"]}
    figures["sparsity"] = pruned["sparsity"]
    if pruned["covered"] < 1:
        figures["covered"] = pruned["covered"]
    if summary["structure"]:
        counts = summary["structure"]["parameters"]
        figures["size"] = counts["pruned"] / counts["dense"]
    if summary["speed"]["state"] == "measured":
        ratio = summary["speed"]["ratio"]
        figures |= {"memory": ratio["peak_memory_mb"]} if "peak_memory_mb" in ratio else {}
        figures |= {phase: ratio[phase]["median"] for phase in PHASES if phase in ratio}
    return figures
