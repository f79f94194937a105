"""Taylor salience of channels: the change of the loss when a channel's weights are removed (LLM-Pruner).

Setting weights w to 0 changes the loss of text s by -wᵀg_s + ½ wᵀH_s w. With g the mean gradient over texts and the
mean of g_s² for the diagonal of H (the empirical Fisher information), a weight carries

    first order   a = w g,
    second order  h = w² mean_s g_s²,
    mixed         a - ½ h,

and a channel (a row of a linear that makes units, with its bias, or a column of the one that reads them) carries the
sum of its weights' magnitudes (`element`) or the magnitude of their sum (`vector`), Ma et al. 2023, eq. 3 and 4. For
h, which is not negative, both are the same.
"""

from __future__ import annotations

from torch import Tensor

SECOND = "second"
TERMS = ("vector.first", "vector.mixed", "element.first", "element.mixed", SECOND)
"""Aggregation and order of each kind of salience; for the second order both aggregations agree."""


def channel_salience(weight: Tensor, gradient: Tensor, squared: Tensor) -> dict[str, Tensor]:
    """Salience of each channel by every term of `TERMS`, each (channels,).

    weight: (channels, weights of each); gradient, squared: their mean gradient and mean squared gradient over texts.
    """
    first, second = weight * gradient, weight.square() * squared
    mixed = first - second / 2
    return {
        "vector.first": first.sum(1).abs(),
        "vector.mixed": mixed.sum(1).abs(),
        "element.first": first.abs().sum(1),
        "element.mixed": mixed.abs().sum(1),
        SECOND: second.sum(1),
    }
