"""Non-uniform sparsity (OWL, error curves): exact counts of each linear, set before the walk from dense statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.allocation import by_error, by_outliers, error_curve, exact_counts, outlier_ratio
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.params.pruning import Solve
from stages.solving.linear.assignment import Assignment
from stages.walk.statistics import InputStatistics

Statistics = Callable[[int], list[InputStatistics]]
"""Gives the statistics of the inputs of a dense block, by its index."""


def allocate(
    assignments: dict[str, Assignment], settings: Solve, model: StreamedModel, statistics: Statistics
) -> dict[str, Assignment]:
    """The assignments with exact counts by solve.allocation; their total is that of `solve.sparsity`.

    Linears with a sparsity or an N:M pattern of their own keep it.
    Raises ParameterError where the rows of a linear do not compete, or no linear is left to allocate to.
    """
    if settings.allocation == "uniform":
        return assignments
    linears = _sharing(assignments, settings, model)
    sizes = [linear.shape[0] * linear.shape[1] for linear in linears]
    sparsities = _by_outliers if settings.allocation == "owl" else _by_error
    wanted = sparsities(linears, sizes, settings, model, statistics)
    counts = exact_counts(wanted, sizes, settings.amount, settings.allocation_spread)
    return assignments | {
        linear.name: dataclasses.replace(assignments[linear.name], kept=kept)
        for linear, kept in zip(linears, counts, strict=True)
    }


def _sharing(assignments: dict[str, Assignment], settings: Solve, model: StreamedModel) -> list[Linear]:
    """The linears that share solve.sparsity out; raises ParameterError for none, and for rows that do not compete."""
    linears = [
        linear
        for index in range(model.blocks)
        for linear in model.linears(index)
        if assignments[linear.name].shares and assignments[linear.name].groups is None
    ]
    if not linears:
        raise ParameterError(
            f"solve.allocation: {settings.allocation} has nothing to share out: every linear has a sparsity or an N:M "
            "pattern of its own in solve.rules: set allocation to uniform, or leave the sparsity out of a rule"
        )
    for linear in linears:
        if assignments[linear.name].scope != "linear":
            raise ParameterError(
                f"solve.allocation: {settings.allocation} needs scope linear, got {assignments[linear.name].scope} for "
                f"{linear.name}: set solve.scope to linear, or allocation to uniform"
            )
    return linears


def _by_outliers(
    linears: Sequence[Linear], sizes: Sequence[int], settings: Solve, model: StreamedModel, statistics: Statistics
) -> list[float]:
    """Sparsity of each linear, its block's: blocks with a larger share of outlier scores |w| ‖x‖ lose less (OWL)."""
    blocks = sorted({linear.block for linear in linears})
    ratios, totals = [], []
    for block in blocks:
        grams = _grams(statistics(block))
        scores = [
            model.weights.stored(linear).to(grams[linear.name]).abs() * grams[linear.name].diagonal().sqrt()
            for linear in linears
            if linear.block == block
        ]
        ratios.append(outlier_ratio(scores, settings.allocation_outlier))
        totals.append(sum(size for linear, size in zip(linears, sizes, strict=True) if linear.block == block))
    sparsities = by_outliers(ratios, totals, settings.amount, settings.allocation_spread)
    of_block = dict(zip(blocks, sparsities, strict=True))
    return [of_block[linear.block] for linear in linears]


def _by_error(
    linears: Sequence[Linear], sizes: Sequence[int], settings: Solve, model: StreamedModel, statistics: Statistics
) -> list[float]:
    """Sparsity of each linear at which all have the same error on their error-against-sparsity curves."""
    curves = []
    for block in sorted({linear.block for linear in linears}):
        grams = _grams(statistics(block))
        for linear in linears:
            if linear.block == block:
                gram = grams[linear.name]
                curves.append(error_curve(model.weights.stored(linear).to(gram), gram))
    return by_error(curves, sizes, settings.amount, settings.allocation_spread)


def _grams(statistics: list[InputStatistics]) -> dict[str, Tensor]:
    """The Gram matrix (d_in, d_in) of each linear's inputs, by the linear's name."""
    return {name: shared.gram for shared in statistics for name in shared.linears}
