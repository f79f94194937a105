"""Token ids of a text on disk (one int32 column, a row a token), and calibration windows drawn from them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from stages.artifacts.manifest import verified
from stages.errors import ParameterError


def write_tokens(folder: Path, which: str, ids: np.ndarray, facts: Mapping[str, Any]) -> None:
    """Write the token ids (n,) of set `which` (calibration or evaluation), with `facts` in the file's own metadata."""
    schema = pa.schema([("token", pa.int32())], metadata={"facts": json.dumps(facts, sort_keys=True)})
    pq.write_table(pa.table([pa.array(ids)], schema=schema), folder / f"{which}.parquet")


def read_tokens(folder: Path, which: str, manifest: Mapping[str, Any]) -> Tensor:
    """All token ids (int64) of set `which` (calibration or evaluation) in a folder that fetch wrote."""
    path = verified(folder, f"{which}.parquet", manifest)
    column = pq.read_table(path, columns=["token"])["token"]
    return torch.from_numpy(column.to_numpy().copy()).long()


def sample_windows(
    tokens: Tensor, sequences: int, length: int, seed: int, text: Mapping[str, Any] | None = None
) -> Tensor:
    """(sequences, length) windows of a text, drawn by random.Random(seed).

    text: its facts. Where they have `sequence`, the text consists of sequences of so many tokens (images), of which
    `halves` in a row are of one image. Images are then drawn without replacement, a window is the first tokens of a
    sequence, and windows of an image stand together, on one side of the split into fitted and held-out sequences if
    their number is even; elsewhere windows start anywhere.
    Raises ParameterError if the text has fewer tokens than the windows together, or shorter sequences.
    """
    draw = random.Random(seed)
    if text is not None and "sequence" in text:
        sequence, halves = int(text["sequence"]), int(text.get("halves", 1))
        count = _whole_sequences(tokens, sequences, length, sequence, "calibration")
        images = draw.sample(range(count // halves), -(-sequences // halves))
        starts = [sequence * (image * halves + half) for image in images for half in range(halves)][:sequences]
    else:
        last = len(tokens) - length - 1
        if last < 0 or sequences * length > len(tokens):
            raise ParameterError(
                f"calibration: {sequences} sequences of {length} tokens are more than the {len(tokens)} tokens of the "
                "calibration text: use fewer or shorter ones, or more text (fetch.calibration)"
            )
        starts = [draw.randint(0, last) for _ in range(sequences)]
    return torch.stack([tokens[start : start + length] for start in starts])


def first_sequences(tokens: Tensor, sequences: int, length: int, sequence: int) -> Tensor:
    """(sequences, length) first tokens of the first sequences of an evaluation text; sequence: see `sample_windows`."""
    _whole_sequences(tokens, sequences, length, sequence, "evaluation")
    return tokens[: sequences * sequence].view(sequences, sequence)[:, :length]


def _whole_sequences(tokens: Tensor, sequences: int, length: int, sequence: int, which: str) -> int:
    """How many sequences a text has; raises ParameterError for fewer or shorter ones than wanted."""
    if length > sequence:
        raise ParameterError(
            f"{which}: expected windows of at most {sequence} tokens, the sequence of an image, got {length}: shorten "
            "calibration.length"
        )
    count = len(tokens) // sequence
    if sequences > count:
        raise ParameterError(
            f"{which}: {sequences} sequences are more than the {count} of the {which} images: use fewer, or more "
            f"images (fetch.{which})"
        )
    return count
