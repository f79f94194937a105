"""`secateur`: what there is and how to run it."""

from __future__ import annotations

import argparse

HELP = """Prune language models as a reproducible pipeline. In the project's folder:

  dvc repro                            run what is not up to date
  dvc repro -s solve                   run one stage
  dvc exp run -S solve.method=wanda    try a value beside the others
  dvc params diff; dvc metrics diff    what changed, and what came of it
  dvc plots show                       the figures as a page

  python -m stages.<name> [--help]     a stage by hand: fetch, extract, statistics, solve, assemble,
                                       compare_attention, measure_speed, evaluate, report
  python -m stages.solve --list        the methods, their settings and papers
  python -m stages.report --show       the last result, in short
  python -m stages.models.importing.llamagen --help
                                       LlamaGen's published files (images) as a folder that fetch reads

Settings are in params.yaml, the graph in dvc.yaml, results in data/report/index.html."""


def main() -> None:
    """Print how to use the pipeline."""
    argparse.ArgumentParser(
        prog="secateur", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(HELP)
