"""solve.units: how structured methods rank heads and channels and compensate for those removed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.params.base import Positive, Section


class UnitSettings(Section):
    """solve.units: settings of structured methods; `auto` stands for what the method's paper does."""

    ranking: Literal["parameters", "literal"] = "parameters"
    """parameters: the lowest scores go until the budget of parameters is met; literal: a threshold by the count of
    units, as eq. 8 of numerical pruning is written."""
    allocation: Literal["auto", "global", "uniform"] = "auto"
    """global: units of all blocks compete; uniform: each block loses the same number of heads and of channels."""
    multiple: Positive = 1
    """Pruned MLP widths are multiples of it, for kernels that want them so."""
    compensation: Literal["auto", "weights", "bias", "affine", "none"] = "auto"
    """What makes up for removed units: a refit of kept weights of o and down, a bias for the mean, or affine: both."""
    damping: Annotated[float, Field(ge=0)] = 0.01
    """Of the refit: added to each diagonal entry of the Gram matrix, as a fraction of it."""
    choice: Literal["dense", "pruned"] = "dense"
    """Whose inputs choose the units of a block once their number is settled, where solve.inputs is pruned."""
    corrected: Literal["sinks", "all"] = "sinks"
    """Linears whose targets are corrected, where any is: o and down only (sinks), or q, k, v, gate and up too."""
