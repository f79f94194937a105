"""Losses of windows, computed in groups whose results are kept in the block store: a killed run goes on from them."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.code import code_of
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.measuring.quality.evaluated import Evaluated
from stages.measuring.quality.perplexity import losses
from stages.measuring.quality.windows import Window
from stages.models.loading.compute import compute_facts
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun

TOGETHER = 8
"""Windows whose losses are kept together."""


def stored_losses(run: StageRun, evaluated: Evaluated) -> list[float]:
    """The summed negative log likelihood of every window, float64; see `perplexity`."""
    model, chunk = evaluated.model, run.params.compute.chunk
    facts = {
        "code": code_of(_write_losses),
        "model": evaluated.files,
        "tokens": evaluated.tokens_sha256,
        **compute_facts(model.device, model.dtype, chunk),
    }
    of_windows = list[float]()
    with progress(total=len(evaluated.windows), desc="perplexity", unit="window") as bar:
        for start in range(0, len(evaluated.windows), TOGETHER):
            group = evaluated.windows[start : start + TOGETHER]
            key = key_of(task="evaluate", windows=[asdict(window) for window in group], **facts)
            write = partial(_write_losses, model, evaluated.tokens, group, chunk)
            path = run.run_block(Block("evaluate", start // TOGETHER, key), write)
            of_windows += read_tensors(path)["losses"].tolist()
            bar.update(len(group))
    return of_windows


def _write_losses(model: Any, tokens: Tensor, windows: list[Window], chunk: int, path: Path) -> dict[str, float]:
    begin = time.perf_counter()
    write_tensors(path, {"losses": torch.tensor(losses(model, tokens, windows, chunk), dtype=torch.float64)})
    return {"window_seconds": time.perf_counter() - begin}
