"""Hidden states entering every block of the dense model -> data/activations.

Block by block: what enters block b is run through it and gives what enters block b + 1, so that only
one block and a chunk of sequences are in memory. Everything inside a block follows from its input;
nothing else is stored. Finished blocks are kept in the block store: a killed run goes on from them.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path

from stages.artifacts.activations import stored_size
from stages.artifacts.calibration import rank_warning
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest, write_manifest
from stages.artifacts.places import ACTIVATIONS, TEXTS
from stages.artifacts.store import BlockStore, key_of, link_blocks
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.models.loading.compute import compute_facts, dtype_of
from stages.params.positions import check_positions
from stages.runtime.blocks.contract import Block
from stages.runtime.disk import need_disk_for_blocks
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model
from stages.walk.forward import widest_linear, write_entering

SECTIONS = ("compute", "calibration", "extract")
ADVICE = (
    "free some (`make clean-store` forgets finished blocks), use fewer or shorter sequences "
    "(calibration.sequences, calibration.length), or set extract.dtype to float16 or bfloat16"
)
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write one file a block, and the manifest."""
    settings, chunk, file_format = run.params.calibration, run.params.compute.chunk, run.params.extract.format
    model, identity = open_model(run.params.compute)
    check_positions(run.params, model.positions)
    texts = read_manifest(TEXTS)
    tokens = read_tokens(TEXTS, "calibration", texts)
    windows = sample_windows(tokens, settings.sequences, settings.length, settings.seed, texts["calibration"])
    calibration = {"text": texts["calibration"], **settings.model_dump(), "widest": widest_linear(model)}
    if short := rank_warning(calibration):
        log.warning(short)
    facts = {
        "code": code_of(main),
        "tokens": texts["files"]["calibration.parquet"],
        "calibration": settings.model_dump(),
        "extract": run.params.extract.model_dump(),
        "model": identity,
        **compute_facts(model.device, model.dtype, chunk),
    }
    dtype = dtype_of(run.params.extract.dtype, model.dtype)
    size = stored_size(file_format, (*windows.shape, model.width), dtype)
    log.info("%d sequences of %d tokens: %.0f MB on disk", *windows.shape, size * model.blocks / 1e6)

    suffix, store = f".{file_format}", BlockStore("extract")
    keys = [key_of(task="extract", block=index, **facts) for index in range(model.blocks)]
    missing = sum(not store.holds(key, suffix) for key in keys)
    need_disk_for_blocks(ACTIVATIONS, size, model.blocks, missing, "the activations", ADVICE)
    paths = list[Path]()
    for index in progress(range(model.blocks), desc="extract", unit="block"):
        write = partial(write_entering, model, index, paths[-1] if paths else None, windows, chunk, file_format, dtype)
        paths.append(run.run_block(Block("extract", index, keys[index], suffix), write))
    with run.output(ACTIVATIONS) as folder:
        link_blocks(paths, folder, suffix)
        write_manifest(folder, {"model": identity, "texts": identity_of(TEXTS), "calibration": calibration})
    for key in keys:
        store.drop(key, suffix)


if __name__ == "__main__":
    parser_of("extract", __doc__).parse_args()
    sys.exit(run_stage("extract", main, SECTIONS, blockwise=True))
