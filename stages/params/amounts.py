"""Resolves sparsity and N:M pattern of solve and its rules, and refuses those that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages.linalg.masks import groups_of
from stages.params.faults import fault_at

if TYPE_CHECKING:
    from stages.params.pruning import Rule, Solve

NEAR = 1e-3
"""Difference of a sparsity from 1 - N/M that is taken for rounding: 2:3 is 0.333."""


def pattern_sparsity(pattern: str) -> float | None:
    """Fraction that an N:M pattern removes, 1 - N/M; None for unstructured."""
    groups = groups_of(pattern)
    return None if groups is None else 1 - groups[0] / groups[1]


def sparsity_and_pattern(settings: Solve, rule: Rule) -> tuple[float, str]:
    """Fraction removed and pattern of the linears that a rule governs.

    What the rule omits is inherited from solve unless the rule's pattern settles it; sparsity 0 protects from any
    pattern.
    """
    pattern = rule.pattern or settings.pattern
    if rule.sparsity == 0:
        return 0.0, "unstructured"
    implied = pattern_sparsity(pattern)
    if implied is not None:
        return implied, pattern
    inherited = pattern_sparsity(settings.pattern) if settings.sparsity is None else settings.sparsity
    return (inherited if rule.sparsity is None else rule.sparsity), pattern  # type: ignore[return-value]


def check_amounts(settings: Solve) -> None:
    """Raise a `fault_at` for a sparsity that its N:M pattern contradicts, or one missing where there is no pattern."""
    implied = pattern_sparsity(settings.pattern)
    if settings.sparsity is None and implied is None:
        raise fault_at("solve.sparsity", "pattern unstructured needs one, got nothing: write, say, `sparsity: 0.5`")
    if settings.sparsity is not None:
        _agree("solve.sparsity", settings.sparsity, settings.pattern)
    for number, rule in enumerate(settings.rules):
        if rule.sparsity:
            _agree(f"solve.rules[{number}].sparsity", rule.sparsity, rule.pattern or settings.pattern)


def _agree(place: str, sparsity: float, pattern: str) -> None:
    """Raise a `fault_at` where a sparsity is not what its N:M pattern removes."""
    implied = pattern_sparsity(pattern)
    if implied is not None and abs(sparsity - implied) > NEAR:
        raise fault_at(
            place,
            f"pattern {pattern} removes {implied:.4g}, got {sparsity:g}: write `sparsity: null` or `sparsity: "
            f"{implied:.4g}`, or write `pattern: unstructured` beside it",
        )
