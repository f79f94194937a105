"""solve.units: how methods that remove whole heads and channels rank and compensate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.params.base import Positive, Section


class UnitSettings(Section):
    """Of structured methods; `auto` is what the method's paper does."""

    ranking: Literal["parameters", "literal"] = "parameters"
    """Until the budget is met in parameters; or by the count of units, as eq. 8 of numerical pruning is written."""
    allocation: Literal["auto", "global", "uniform"] = "auto"
    """All blocks compete; or each loses the same number of heads and of channels."""
    multiple: Positive = 1
    """Widths of the MLP stay multiples of it, for kernels that want them so."""
    compensation: Literal["auto", "weights", "bias", "affine", "none"] = "auto"
    """What makes up for removed units: the kept weights of o and down, a bias for what they add on average, both."""
    damping: Annotated[float, Field(ge=0)] = 0.01
    """Of compensation: added to the diagonal of the Gram matrix, as a fraction of it."""
    choice: Literal["dense", "pruned"] = "dense"
    """Inputs by which units of a block are chosen once their number is settled, where solve.inputs is pruned."""
    corrected: Literal["sinks", "all"] = "sinks"
    """Linears whose targets are corrected, where they are: o and down only, or those that make units too."""
