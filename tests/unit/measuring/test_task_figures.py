"""Rows of lm-eval's results: every metric that a task promises is there, whatever its answers are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stages.errors import ParameterError
from stages.measuring.quality.task_figures import task_rows


def rows(output_type):
    """The row of a task that asks for `rouge` and got `rouge1`, as lm-eval names it where answers are generated."""
    task = SimpleNamespace(OUTPUT_TYPE=output_type, aggregation=lambda: {"rouge": None})
    results = {"results": {"sum": {"rouge1,none": 0.5}}, "n-shot": {"sum": 0}}
    return task_rows(results, {"sum": task}, {})


def test_metrics_of_generated_answers_may_have_other_names():
    assert rows("generate_until")["sum"]["rouge1"] == 0.5


@pytest.mark.parametrize("output_type", ["loglikelihood", "multiple_choice"])
def test_metrics_of_other_answers_may_not(output_type):
    with pytest.raises(ParameterError, match="asks for rouge, which lm-eval does not compute"):
        rows(output_type)
