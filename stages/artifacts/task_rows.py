"""Rows of lm-eval tasks in metrics/<model>.json: metrics, standard errors and counts."""

from __future__ import annotations

from collections.abc import Mapping

COUNTS = ("n", "fewshot", "truncated", "tokens_cut")
"""Documents, examples before each, prompts that were cut to the longest input, tokens lost by that."""


def metrics_in(row: Mapping[str, float]) -> list[str]:
    """Names of the metrics in a row, without counts and standard errors."""
    return [name for name in row if name not in COUNTS and not name.endswith("_stderr")]
