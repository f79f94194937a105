"""One page to read about the last run, its figures as DVC plots, or a short table (--show).

Reads  metrics/, data/evaluation, data/attention, data/speed, data/solution and data/pruned/pruning_manifest.json.
Writes data/report/index.html, summary.json and plots/*.csv; metrics/summary.json, the figures that DVC compares.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import read_json
from stages.artifacts.places import KEY_FIGURES, REPORT
from stages.errors import SecateurError
from stages.methods import registry
from stages.params.pruning import Solve
from stages.reporting.key_figures import key_figures
from stages.reporting.page import page
from stages.reporting.plots import write_plots
from stages.reporting.results import read_results
from stages.reporting.summary import summarise
from stages.reporting.terminal import short_table
from stages.runtime.stage import StageRun, parser_of, run_stage

SUMMARY, PAGE = "summary.json", "index.html"


def main(run: StageRun) -> None:
    """Write the page, the summary and the plots together."""
    results = read_results()
    summary = summarise(results)
    with run.output(REPORT) as folder:
        write_json(folder / SUMMARY, summary)
        write_plots(folder / "plots", results)
        (folder / PAGE).write_text(page(results, summary), encoding="utf-8")
    write_json(KEY_FIGURES, key_figures(summary), sort=False)  # DVC shows them in this order


def show() -> int:
    """Print the last run in short; gives the exit code."""
    try:
        summary = read_json(REPORT / SUMMARY)
        print(short_table(summary, defaults_of(summary), REPORT / PAGE))
    except SecateurError as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    return 0


def defaults_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What `solve` and the settings of the methods in use are where nobody sets them."""
    solve = summary["solve"]
    return {
        "solve": Solve(method=solve["method"], sparsity=0.5).model_dump(mode="json") if solve else {},
        "methods": {name: registry.settings_of(name) for name in summary["methods"]},
    }


if __name__ == "__main__":
    parser = parser_of("report", __doc__ or "")
    parser.add_argument("--show", action="store_true", help="print the last result in short and write nothing")
    sys.exit(show() if parser.parse_args().show else run_stage("report", main, ()))
