"""The figures of a run in one dictionary: summary.json, the page and the terminal show the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from stages.artifacts.calibration import rank_warning
from stages.reporting.images import images_facts
from stages.reporting.results import Results
from stages.reporting.structure import structure_facts

Row = Mapping[str, Any]


def summarise(results: Results) -> dict[str, Any]:
    """Figures, settings and facts of a run as plain values, the same for the same results."""
    dense, pruned = results.metrics["dense"], results.metrics["pruned"]
    rows = results.rows
    exact = exact_roles(rows)
    return {
        "model": model_name(results.manifest),
        "dense": dense,
        "pruned": {
            **pruned,
            **totals(rows, exact),
            "sparsity": results.manifest["sparsity"],
            "block_weights": results.manifest["block_weights"],
            "covered": results.manifest["covered"],
            "linears_sparsity": results.manifest["linears"]["sparsity"],
            "perplexity_ratio": pruned["perplexity"]["value"] / dense["perplexity"]["value"],
        },
        "rank_shortfall": rank_warning(results.manifest.get("calibration", {})),
        "methods": list(grouped(rows, "method")),
        "patterns": list(grouped(rows, "pattern")),
        "exact_roles": exact,
        "roles": [{"role": role, **totals(part)} for role, part in grouped(rows, "role").items()],
        "blocks": [{"block": block, **totals(part, exact)} for block, part in grouped(rows, "block").items()],
        "retried": [dict(row) for row in rows if row.get("attempts", 1) > 1],
        "attention": dict(results.attention),
        "structure": structure_facts(results.manifest),
        "speed": dict(results.speed),
        "images": images_facts(results.metrics, results.protocol),
        "notes": list(notes(results.metrics)),
        "protocol": {kind: results.protocol[kind] for kind in ("perplexity", "tasks")},
        "solve": results.solution.get("solve", {}),
        "settings": results.solution.get("settings", {}),
        "calibration": results.manifest.get("calibration", results.solution.get("calibration", {})),
        "costs": [{"stage": stage.replace("_", " "), **cost} for stage, cost in results.costs.items()],
    }


def notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Warnings about the figures: prompts of tasks that were cut."""
    for model, measured in metrics.items():
        for task, row in measured["tasks"].items():
            if row.get("truncated"):
                yield (
                    f"{task}, {model} model: {row['truncated']} of {row['n']} prompts were cut to the longest input, "
                    f"{row['tokens_cut']} tokens lost (evaluate.tasks.max_length)"
                )


def exact_roles(rows: Iterable[Row]) -> list[str]:
    """Roles whose linears only lose rows, with the units that those make: the outputs that are left do not err."""

    def errs(row: Row) -> bool:
        return row["pattern"] != "units" or row["relative_error"] > 0

    return [role for role, part in grouped(rows, "role").items() if not any(map(errs, part))]


def totals(rows: Iterable[Row], exact: Collection[str] = ()) -> dict[str, Any]:
    """Counts over some linears, their sparsity, and their relative errors, each linear counting once.

    exact: roles whose errors are not counted.
    """
    rows = list(rows)
    weights, kept = (sum(row[column] for row in rows) for column in ("weights", "kept"))
    errors = [row["relative_error"] for row in rows if row["role"] not in exact]
    return {
        "linears": len(rows),
        "weights": weights,
        "kept": kept,
        "sparsity": 1 - kept / weights if weights else 0.0,
        "relative_error": sum(errors) / len(errors) if errors else 0.0,
        "largest_error": max(errors, default=0.0),
    }


def grouped(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    """Rows with equal values in `column`, in the order in which the values first come."""
    parts: dict[Any, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[column], []).append(row)
    return parts


def model_name(manifest: Mapping[str, Any]) -> str:
    """Name of the source model: its hub id, or the name of its file or folder."""
    source = manifest.get("source", {})
    source = source.get("source", source)
    if isinstance(source, str):
        return source
    if source.get("id"):
        return str(source["id"])
    return PurePath(str(source.get("member") or source.get("path") or "the model")).name
