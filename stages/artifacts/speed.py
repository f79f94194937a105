"""rounds.parquet, the table of timings: a row a round, model (dense or pruned) and phase (prefill, decode, images)."""

from __future__ import annotations

import pyarrow as pa

from stages.artifacts.table import Table

ROUNDS = Table(
    "rounds.parquet",
    pa.schema(
        [
            ("round", pa.int32()), ("model", pa.string()), ("phase", pa.string()), ("tokens", pa.int64()),
            ("images", pa.int64()), ("seconds", pa.float64()),
        ]
    ),
)  # fmt: skip
"""tokens: that the model was given (prefill) or gave (decode, images) in that time; images: that they make, or null."""
