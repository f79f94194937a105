"""Masks and refitted weights of every block -> data/solution.

Reads data/model, data/statistics, data/activations and data/texts. The method of params.yaml prunes block after
block (solving/); finished blocks are kept in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import sys

from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import write_manifest
from stages.artifacts.places import SOLUTION
from stages.artifacts.store import link_blocks, trim
from stages.methods import registry
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.solving.families import solve_model

SECTIONS = ("compute", "statistics", "solve", "methods")


def main(run: StageRun) -> None:
    """Write one file a block, the table of linears and the manifest."""
    solved = solve_model(run)
    with run.output(SOLUTION) as folder:
        link_blocks(solved.paths, folder)
        LINEARS.write(folder, solved.rows)
        write_manifest(folder, solved.facts)
    solved.forget()
    trim(run.params.store.limit_gb * 1e9)


if __name__ == "__main__":
    parser = parser_of("solve", __doc__)
    parser.add_argument("--list", action="store_true", help="list the methods and their papers, and stop")
    if parser.parse_args().list:
        print(registry.describe_methods())
        sys.exit(0)
    sys.exit(run_stage("solve", main, SECTIONS, blockwise=True))
