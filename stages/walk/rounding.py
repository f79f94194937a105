"""Rounding of solved weights to the checkpoint's dtype, with overflow as an error."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.errors import NotFiniteError
from stages.models.structure import Linear


def in_stored_dtype(values: Tensor, dtype: torch.dtype, linear: Linear, what: str) -> Tensor:
    """Solved weights or biases of a linear, rounded to the checkpoint's dtype.

    A kept weight may become 0, or be so small that it does: it stays a kept one, masks are the solver's. Raises
    NotFiniteError for what the dtype cannot hold.
    """
    stored = values.to(dtype)
    if not bool(torch.isfinite(stored).all()):
        largest, name = float(values.abs().max()), str(dtype).removeprefix("torch.")
        raise NotFiniteError(
            f"block {linear.block}: the solved {what} of {linear.name} reach {largest:g}: expected at most "
            f"{torch.finfo(dtype).max:g}, which {name} holds: set fetch.model.dtype to bfloat16 or float32, "
            "or use more calibration tokens"
        )
    return stored
