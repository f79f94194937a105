"""linears.parquet, the table of a solution: a row a linear, how it was pruned and how well."""

from __future__ import annotations

import pyarrow as pa

from stages.artifacts.table import Table

LINEARS = Table(
    "linears.parquet",
    pa.schema(
        [
            ("linear", pa.string()), ("block", pa.int32()), ("role", pa.string()), ("method", pa.string()),
            ("pattern", pa.string()), ("scope", pa.string()), ("weights", pa.int64()), ("kept", pa.int64()),
            ("sparsity", pa.float64()), ("relative_error", pa.float64()), ("damping", pa.float64()),
            ("attempts", pa.int32()), ("refits", pa.bool_()), ("refit", pa.string()), ("correction", pa.float64()),
            ("correction_ridge", pa.float64()),
        ]
    ),
)  # fmt: skip
"""sparsity: fraction removed; relative_error: ‖XΔᵀ‖²/‖XW₀ᵀ‖²; damping: null where nothing was inverted; refits: whether
kept weights changed; refit: none, cg or exact, after the method; correction, correction_ridge: the strength and the
ridge of the target's correction, null where the target was the dense weight."""
