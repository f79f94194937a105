"""Gram matrix, mean and token count of every distinct input of every block -> data/statistics.

From the dense model's hidden states; computed once and used by every method. Finished blocks are kept
in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from stages.artifacts.atomic import link_or_copy
from stages.artifacts.manifest import identity_of, read_manifest, verified, write_manifest
from stages.artifacts.store import BlockStore, key_of
from stages.models.compute import DTYPES
from stages.models.streamed import StreamedModel
from stages.params import Params
from stages.places import ACTIVATIONS, STATISTICS, block_file
from stages.runner import StageRun, parser_of, progress, run_stage
from stages.walk import collect
from stages.workspace import activations_suffix, code_of, compute_facts, open_model, same_model, write_statistics

SECTIONS = ("compute", "statistics")


def main(run: StageRun) -> None:
    """Write one file a block, and the manifest."""
    model, identity = open_model(run.params.compute)
    states = read_manifest(ACTIVATIONS)
    same_model(states, identity, ACTIVATIONS)
    suffix = activations_suffix(states)
    facts = {
        "code": code_of("walk.py", "workspace.py", "models", "linalg/gram.py"),
        "model": identity,
        "statistics": run.params.statistics.model_dump(),
        **compute_facts(model, run.params.compute.chunk),
    }
    store, paths = BlockStore("statistics"), list[Path]()
    for index in progress(range(model.blocks), desc="statistics", unit="block"):
        name = block_file(index, suffix)
        key = key_of(task="statistics", block=index, states=states["files"].get(name), **facts)
        source = verified(ACTIVATIONS, name, states)
        paths.append(store.get(key, partial(_write_block, model, index, source, run.params)))
    with run.output(STATISTICS) as folder:
        for index, path in enumerate(paths):
            link_or_copy(path, folder / block_file(index))
        made_from = {"model": identity, "activations": identity_of(ACTIVATIONS), "calibration": states["calibration"]}
        write_manifest(folder, made_from)


def _write_block(model: StreamedModel, index: int, source: Path, params: Params, path: Path) -> None:
    dtype = DTYPES[params.statistics.dtype]
    write_statistics(path, collect(model, index, source, params.compute.chunk, dtype))


if __name__ == "__main__":
    parser_of("statistics", __doc__).parse_args()
    sys.exit(run_stage("statistics", main, SECTIONS))
