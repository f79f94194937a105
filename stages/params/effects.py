"""Refuses settings of solve that would have no effect beside the others: a value is never silently ignored."""

from __future__ import annotations

from stages.linalg.masks import groups_of
from stages.methods import registry
from stages.params.base import only_defaults
from stages.params.faults import fault_at
from stages.params.pruning import Rule, Solve

WEIGHTS = ("pattern", "scope", "refit", "refit_steps", "refit_ridge", "allocation", "allocation_spread",
           "allocation_outlier")  # fmt: skip
"""Settings of solve for methods that prune single weights."""
WALK = ("inputs", "walk", "target", "correction", "correction_ridges")
"""Settings of solve for methods that walk over the blocks by solve.inputs."""
RULE = ("method", "pattern", "scope", "refit", "settings")
"""Settings of a rule for methods that prune single weights."""


def check_effects(solve: Solve) -> None:
    """Raise a `fault_at` for the first setting of solve or of a rule that would change nothing."""
    removed = registry.find(solve.method).removes
    if removed == "width":
        slices = f"{solve.method} slices all blocks to one width, each on what the sliced ones before it give"
        only_defaults(solve, (*WEIGHTS, *WALK, "rules", "units"), slices, "")
    elif removed == "units":
        _check_units(solve)
    else:
        _check_weights(solve)
    _check_walk(solve)


def _check_units(solve: Solve) -> None:
    """Of a structured method."""
    removes = f"{solve.method} removes whole heads and channels"
    only_defaults(solve, WEIGHTS, removes, "; see solve.units for what it knows")
    for number, rule in enumerate(solve.rules):
        for name in RULE:
            if getattr(rule, name) is not None:
                raise fault_at(
                    f"solve.rules[{number}].{name}",
                    f"with {solve.method} a rule gives roles (attention, mlp), blocks and sparsity, got {name}: "
                    f"{getattr(rule, name)!r}: take it out",
                )
    units = solve.units
    own = registry.find(solve.method).settings.compensation
    compensation = own if units.compensation == "auto" else units.compensation
    if compensation in ("none", "bias"):
        only_defaults(units, ["damping"], f"compensation: {compensation} inverts nothing", "", "solve.units")
    if solve.inputs == "dense":
        only_defaults(units, ["choice", "corrected"], "solve.inputs is dense", "", "solve.units")
    if solve.target == "dense":
        only_defaults(units, ["corrected"], "solve.target is dense", "", "solve.units")


def _check_weights(solve: Solve) -> None:
    """Of methods that prune single weights."""
    only_defaults(
        solve.units, type(solve.units).model_fields, f"{solve.method} removes single weights", "", "solve.units"
    )
    for number, rule in enumerate(solve.rules):
        _check_rule(solve, number, rule)
    everyone = [Rule(), *solve.rules]
    layerwise = [rule for rule in everyone if _layerwise(rule.method or solve.method)]
    if not any(rule.refit is None for rule in layerwise):
        only_defaults(solve, ["refit"], f"no refit follows {solve.method}", "")
    refits = {rule.refit or solve.refit for rule in layerwise}
    if refits == {"none"}:
        only_defaults(solve, ["refit_steps", "refit_ridge"], "refit is none", "; set refit to cg, or take it out")
    elif "cg" not in refits:
        only_defaults(solve, ["refit_steps"], "refit is exact, which takes no steps", "")
    if all(groups_of(rule.pattern or solve.pattern) or rule.scope for rule in everyone):
        only_defaults(solve, ["scope"], f"weights compete within the groups of {solve.pattern}", "")
    if groups_of(solve.pattern):
        only_defaults(solve, ["allocation"], f"pattern {solve.pattern} settles what every linear loses", "")
    if solve.allocation == "uniform":
        only_defaults(solve, ["allocation_spread"], "allocation is uniform", "; set allocation, or take it out")
    if solve.allocation != "owl":
        only_defaults(solve, ["allocation_outlier"], f"allocation is {solve.allocation}", "; set it to owl")


def _layerwise(name: str) -> bool:
    """Whether a method prunes linears one by one, so that a refit can follow it."""
    method = registry.find(name)
    return method.removes == "weights" and not method.joint


def _check_rule(solve: Solve, number: int, rule: Rule) -> None:
    """Of rule `number`, for methods that prune single weights."""
    place, method = f"solve.rules[{number}]", rule.method or solve.method
    given = [name for name in (*RULE, "sparsity") if getattr(rule, name) is not None]
    if not given and number == len(solve.rules) - 1:
        raise fault_at(place, "it gives roles and blocks alone: add, say, `sparsity: 0`, or take it out")
    if rule.sparsity == 0:
        idle = [name for name in given if name not in ("sparsity", "pattern")]
        if idle:
            raise fault_at(f"{place}.{idle[0]}", "a rule with sparsity 0 prunes nothing: take it out, or the sparsity")
    if rule.refit is not None and registry.find(method).joint:
        raise fault_at(f"{place}.refit", f"{method} is not followed by a refit, got {rule.refit}: take it out")
    if rule.scope is not None and groups_of(rule.pattern or solve.pattern):
        pattern = rule.pattern or solve.pattern
        raise fault_at(f"{place}.scope", f"weights compete in the groups of {pattern}, got {rule.scope}: take it out")


def _check_walk(solve: Solve) -> None:
    """Of corrections, where nothing is corrected."""
    reason = "solve.inputs is dense" if solve.inputs == "dense" else "solve.target is dense"
    if "dense" in (solve.inputs, solve.target):
        only_defaults(solve, ["correction", "correction_ridges"], f"{reason}, so nothing is corrected", "")
