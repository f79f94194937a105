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
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.activations import stored_size
from stages.artifacts.atomic import link_or_copy
from stages.artifacts.calibration import rank_shortfall
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest, write_manifest
from stages.artifacts.places import ACTIVATIONS, TEXTS, block_file
from stages.artifacts.store import FOLDER, BlockStore, key_of
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.models.loading.compute import compute_facts, dtype_of
from stages.models.streaming.streamed import StreamedModel
from stages.params import Params
from stages.params.positions import check_positions
from stages.runtime.blocks.contract import Block
from stages.runtime.disk import need_disk
from stages.runtime.failures import existing
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model
from stages.walk.forward import advance, write_embeddings

SECTIONS = ("compute", "calibration", "extract")
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write one file a block, and the manifest."""
    model, identity = open_model(run.params.compute)
    check_positions(run.params, model.positions)
    windows, facts = _windows(run.params)
    calibration = {
        "text": read_manifest(TEXTS)["calibration"], **run.params.calibration.model_dump(), "widest": _widest(model)
    }  # fmt: skip
    short = rank_shortfall(calibration)
    if short:
        log.warning(short)
    facts |= {"model": identity, **compute_facts(model.device, model.dtype, run.params.compute.chunk)}
    dtype = dtype_of(run.params.extract.dtype, model.dtype)
    size = stored_size(run.params.extract.format, (*windows.shape, model.width), dtype)
    log.info("%d sequences of %d tokens: %.0f MB on disk", *windows.shape, size * model.blocks / 1e6)

    suffix, store = f".{run.params.extract.format}", BlockStore("extract")
    keys = [key_of(task="extract", block=index, **facts) for index in range(model.blocks)]
    _need_disk(size, model.blocks, sum(not store.holds(key, suffix) for key in keys))
    paths: list[Path] = []
    for index in progress(range(model.blocks), desc="extract", unit="block"):
        write = partial(_write_block, model, index, paths, windows, run.params, dtype)
        paths.append(run.note(run.blocks.one(Block("extract", index, keys[index], suffix), write)))
    with run.output(ACTIVATIONS) as folder:
        for index, path in enumerate(paths):
            link_or_copy(path, folder / block_file(index, suffix))
        write_manifest(folder, {"model": identity, "texts": identity_of(TEXTS), "calibration": calibration})
    for key in keys:
        store.drop(key, suffix)


def _need_disk(size: int, blocks: int, missing: int) -> None:
    """Raise SecateurError unless the hidden states of the missing blocks, `size` bytes each, fit on the disk.

    Where the block store and data are on two disks, all blocks are copied to the second.
    """
    advice = (
        "free some (`make clean-store` forgets finished blocks), use fewer or shorter sequences "
        "(calibration.sequences, calibration.length), or set extract.dtype to float16 or bfloat16"
    )
    need_disk(FOLDER, size * missing, "the activations", advice)
    if existing(FOLDER).stat().st_dev != existing(ACTIVATIONS.parent).stat().st_dev:
        need_disk(ACTIVATIONS.parent, size * blocks, "the activations", advice)


def _widest(model: StreamedModel) -> dict[str, Any]:
    """The linear with the most inputs, and how many."""
    linears = (linear for index in range(model.blocks) for linear in model.linears(index))
    widest = max(linears, key=lambda linear: linear.shape[1])
    return {"linear": widest.name, "inputs": widest.shape[1]}


def _windows(params: Params) -> tuple[Tensor, dict[str, Any]]:
    """The calibration windows, and the facts that the hidden states follow from."""
    texts, calibration = read_manifest(TEXTS), params.calibration
    tokens = read_tokens(TEXTS, "calibration", texts)
    windows = sample_windows(tokens, calibration.sequences, calibration.length, calibration.seed)
    return windows, {
        "code": code_of(_write_block),
        "tokens": texts["files"]["calibration.parquet"],
        "calibration": calibration.model_dump(),
        "extract": params.extract.model_dump(),
    }


def _write_block(
    model: StreamedModel,
    index: int,
    before: list[Path],
    windows: Tensor,
    params: Params,
    dtype: torch.dtype,
    path: Path,
) -> None:
    file_format, chunk = params.extract.format, params.compute.chunk
    if index == 0:
        write_embeddings(model, windows, path, file_format, dtype)
    else:
        advance(model, index - 1, before[-1], path, chunk, file_format, dtype)


if __name__ == "__main__":
    parser_of("extract", __doc__).parse_args()
    sys.exit(run_stage("extract", main, SECTIONS, blockwise=True))
