"""Rows of tasks in metrics/<model>.json: lm-eval's metrics, their standard errors, and counts beside them."""

from __future__ import annotations

from collections.abc import Mapping

COUNTS = ("n", "fewshot", "truncated", "tokens_cut")
"""Documents, examples before each, prompts that were cut to the longest input, tokens lost by that."""


def metrics_in(row: Mapping[str, float]) -> list[str]:
    """The metrics of a row: no counts, no standard errors."""
    return [name for name in row if name not in COUNTS and not name.endswith("_stderr")]
