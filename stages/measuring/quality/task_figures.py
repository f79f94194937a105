"""Turns lm-eval's results into rows of plain numbers; a metric that is missing or no number is an error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from stages.artifacts.task_rows import metrics_in
from stages.errors import NotFiniteError, ParameterError


def task_rows(
    results: Mapping[str, Any], tasks: Mapping[str, Any], cuts: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[str, float]]:
    """A row of metrics and counts for each task and group; see `evaluate_tasks`.

    tasks: lm-eval's tasks by name. cuts: by task and document, the tokens lost.

    Raises ParameterError for a task without metrics, or without one that its YAML file asks for.
    """
    table = plain_metrics(results)
    for name, task in tasks.items():
        if not metrics_in(table[name]):
            raise ParameterError(
                f"evaluate.tasks.names: task {name} gave no metric: give it a metric_list, or leave the task out"
            )
        missing = [metric for metric in _promised(task) if not _has(results["results"][name], metric)]
        if missing:
            raise ParameterError(
                f"evaluate.tasks.names: task {name} asks for {', '.join(missing)}, which lm-eval does not compute for "
                f"output_type {task.OUTPUT_TYPE}: take it out of the task's metric_list"
            )
        lost = cuts.get(name, {})
        table[name] |= {
            "fewshot": results["n-shot"][name], "truncated": len(lost), "tokens_cut": sum(lost.values())
        }  # fmt: skip
    return {name: row for name, row in table.items() if metrics_in(row)}


def plain_metrics(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """lm-eval's results with `acc,none` as `acc`, counts as `n`, and nothing but numbers.

    Raises NotFiniteError for a metric that is NaN or infinite, ParameterError for one that is no number; a
    standard error that is neither (of one document) is left out.
    """
    table = {}
    for task, metrics in results["results"].items():
        row = {}
        for key, value in metrics.items():
            metric, _, choice = key.partition(",")
            if not choice:
                continue
            name = metric if choice == "none" else f"{metric}_{choice}".replace("-", "_")
            if isinstance(value, Real) and math.isfinite(value):
                row[name] = value if isinstance(value, int | float) else float(value)
            elif metric.endswith("_stderr"):
                continue
            elif isinstance(value, Real):
                raise NotFiniteError(f"{name} of task {task} is {value}: the model's answers are no numbers")
            else:
                raise ParameterError(
                    f"evaluate.tasks.names: {name} of task {task} is no number, got {value!r}: take it out of the "
                    "task's metric_list"
                )
        if task in results.get("n-samples", {}):
            row["n"] = results["n-samples"][task]["effective"]
        table[task] = row
    return table


def _promised(task: Any) -> list[str]:
    """Metrics that a task's results must have; those of generated answers may have other names (rouge: rouge1)."""
    return [] if task.OUTPUT_TYPE == "generate_until" else list(task.aggregation())


def _has(row: Mapping[str, Any], metric: str) -> bool:
    return any(key.partition(",")[0] == metric for key in row)
