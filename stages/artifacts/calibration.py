"""Warning about calibration texts with fewer tokens than a linear has inputs: its Gram matrix is singular."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rank_warning(calibration: Mapping[str, Any]) -> str | None:
    """A warning that the Gram matrix of the widest linear cannot have full rank; None where there are enough tokens.

    calibration: the facts that extract stores: sequences, length, `widest` (a linear, its inputs).
    """
    widest = calibration.get("widest")
    tokens = int(calibration.get("sequences", 0)) * int(calibration.get("length", 0))
    if widest is None or tokens >= widest["inputs"]:
        return None
    return (
        f"calibration has {calibration['sequences']} sequences of {calibration['length']} tokens: the Gram matrix of "
        f"{widest['linear']} is of rank at most {tokens} for inputs of width {widest['inputs']}: use more sequences"
    )
