"""Gram matrix, mean and token count of every distinct input of every block -> data/statistics.

From the dense model's hidden states; computed once and used by every method. Finished blocks are kept
in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from stages.artifacts.activations import activations_suffix
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest, verified, write_manifest
from stages.artifacts.places import ACTIVATIONS, STATISTICS, block_file
from stages.artifacts.store import key_of, link_blocks
from stages.models.loading.compute import DTYPES, compute_facts
from stages.params import Compute, Statistics
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model, same_model
from stages.walk.statistics import collect, write_statistics

SECTIONS = ("compute", "statistics")


def main(run: StageRun) -> None:
    """Write one file a block, and the manifest."""
    model, identity = open_model(run.params.compute)
    states = read_manifest(ACTIVATIONS)
    same_model(states, identity, ACTIVATIONS)
    suffix = activations_suffix(states)
    facts = {
        "code": code_of(_write_block),
        "model": identity,
        "statistics": run.params.statistics.model_dump(),
        **compute_facts(model.device, model.dtype, run.params.compute.chunk),
    }
    work = []
    for index in range(model.blocks):
        name = block_file(index, suffix)
        key = key_of(task="statistics", block=index, states=states["files"].get(name), **facts)
        settings = run.params.compute, run.params.statistics
        work.append((Block("statistics", index, key), partial(_write_block, index, name, states, *settings)))
    with progress(total=model.blocks, desc="statistics", unit="block") as bar:
        paths = run.run_blocks(work, bar.update)
    with run.output(STATISTICS) as folder:
        link_blocks(paths, folder)
        made_from = {"model": identity, "activations": identity_of(ACTIVATIONS), "calibration": states["calibration"]}
        write_manifest(folder, made_from)


def _write_block(
    index: int, name: str, states: dict[str, Any], compute: Compute, settings: Statistics, path: Path
) -> None:
    model, _ = open_model(compute)
    source = verified(ACTIVATIONS, name, states)
    write_statistics(path, collect(model, index, source, compute.chunk, DTYPES[settings.dtype]))


if __name__ == "__main__":
    parser_of("statistics", __doc__).parse_args()
    sys.exit(run_stage("statistics", main, SECTIONS, blockwise=True))
