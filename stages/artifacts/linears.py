"""linears.parquet, the table of a solution: a row a linear, how it was pruned and how well."""

from __future__ import annotations

import pyarrow as pa

from stages.artifacts.table import Row, Table

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


def linear_row(
    linear: str, block: int, role: str, *, method: str, pattern: str, scope: str, weights: int, kept: int,
    relative_error: float, refits: bool, refit: str = "none", damping: float | None = None, attempts: int = 1,
    correction: float = 0.0, correction_ridge: float = 0.0,
) -> Row:  # fmt: skip
    """A row of the table; sparsity follows from the counts, 0 for a linear that the dense model lacks (weights 0).

    See LINEARS for the columns. correction, correction_ridge: 0 where the target was the dense weight, stored as null.
    """
    return {
        "linear": linear, "block": block, "role": role, "method": method, "pattern": pattern, "scope": scope,
        "weights": weights, "kept": kept, "sparsity": 1 - kept / weights if weights else 0.0,
        "relative_error": relative_error, "damping": damping, "attempts": attempts, "refits": refits, "refit": refit,
        "correction": correction or None, "correction_ridge": correction_ridge or None,
    }  # fmt: skip
