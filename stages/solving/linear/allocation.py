"""Non-uniform sparsity: how much each linear loses, decided before the walk from the dense model's statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.allocation import by_error, by_outliers, error_curve, exact_counts, outlier_ratio
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.params.pruning import Solve
from stages.solving.linear.assignment import Assignment
from stages.walk.statistics import InputStatistics


def allocate(
    found: dict[str, Assignment],
    settings: Solve,
    model: StreamedModel,
    statistics: Callable[[int], list[InputStatistics]],
) -> dict[str, Assignment]:
    """The assignments with exact counts of each linear; the total is that of `solve.sparsity`.

    Linears that have a sparsity or an N:M pattern of their own keep it. statistics: of a block, by its index.
    Raises ParameterError where a linear's rows do not compete, or no linear is left to allocate to.
    """
    if settings.allocation == "uniform":
        return found
    linears = [
        linear
        for index in range(model.blocks)
        for linear in model.linears(index)
        if found[linear.name].shares and found[linear.name].groups is None
    ]
    if not linears:
        raise ParameterError(
            f"solve.allocation: {settings.allocation} has nothing to share out: every linear has a sparsity or an N:M "
            "pattern of its own in solve.rules: set allocation to uniform, or leave the sparsity out of a rule"
        )
    for linear in linears:
        if found[linear.name].scope != "linear":
            raise ParameterError(
                f"solve.allocation: {settings.allocation} needs scope linear, got {found[linear.name].scope} for "
                f"{linear.name}: set solve.scope to linear, or allocation to uniform"
            )
    weights = [linear.shape[0] * linear.shape[1] for linear in linears]
    by = _by_outliers if settings.allocation == "owl" else _by_error
    wanted = by(linears, weights, settings, model, statistics)
    counts = exact_counts(wanted, weights, settings.amount, settings.allocation_spread)
    changed = {
        linear.name: dataclasses.replace(found[linear.name], kept=kept)
        for linear, kept in zip(linears, counts, strict=True)
    }
    return found | changed


def _by_outliers(
    linears: list[Linear],
    weights: list[int],
    settings: Solve,
    model: StreamedModel,
    statistics: Callable[[int], list[InputStatistics]],
) -> list[float]:
    blocks = sorted({linear.block for linear in linears})
    ratios, totals = [], []
    for block in blocks:
        ours = [linear for linear in linears if linear.block == block]
        grams = _grams(statistics(block))
        scores = [
            model.weights.stored(one).to(grams[one.name]).abs() * grams[one.name].diagonal().sqrt() for one in ours
        ]
        ratios.append(outlier_ratio(scores, settings.allocation_outlier))
        totals.append(sum(count for linear, count in zip(linears, weights, strict=True) if linear.block == block))
    sparsities = dict(
        zip(blocks, by_outliers(ratios, totals, settings.amount, settings.allocation_spread), strict=True)
    )
    return [sparsities[linear.block] for linear in linears]


def _by_error(
    linears: list[Linear],
    weights: list[int],
    settings: Solve,
    model: StreamedModel,
    statistics: Callable[[int], list[InputStatistics]],
) -> list[float]:
    curves = []
    for block in sorted({linear.block for linear in linears}):
        grams = _grams(statistics(block))
        for linear in linears:
            if linear.block == block:
                gram = grams[linear.name]
                curves.append(error_curve(model.weights.stored(linear).to(gram), gram))
    return by_error(curves, weights, settings.amount, settings.allocation_spread)


def _grams(statistics: list[InputStatistics]) -> dict[str, Tensor]:
    return {name: one.gram for one in statistics for name in one.linears}
