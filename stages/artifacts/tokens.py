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


def sample_windows(tokens: Tensor, sequences: int, length: int, seed: int) -> Tensor:
    """(sequences, length) windows with starts drawn by random.Random(seed).randint.

    Raises ParameterError if the text has fewer tokens than the windows together.
    """
    last = len(tokens) - length - 1
    if last < 0 or sequences * length > len(tokens):
        raise ParameterError(
            f"calibration: {sequences} sequences of {length} tokens are more than the {len(tokens)} tokens of the "
            "calibration text: use fewer or shorter ones, or more text (fetch.calibration)"
        )
    draw = random.Random(seed)
    starts = [draw.randint(0, last) for _ in range(sequences)]
    return torch.stack([tokens[start : start + length] for start in starts])
