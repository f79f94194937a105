"""Who prunes what: settings and rules of params.yaml, resolved for each linear."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.errors import ParameterError
from stages.linalg.global_magnitude import kept_by_global_magnitude
from stages.linalg.masks import groups_of, removed_count
from stages.methods import registry
from stages.methods.attention.contract import AttentionSolver
from stages.methods.linear.contract import Budget, LinearSolver
from stages.models.roles import KEY, QUERY
from stages.models.streaming.coverage import check_coverage
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.params import Params
from stages.params.amounts import sparsity_and_pattern
from stages.params.pruning import Rule
from stages.solving.rules import log_rules, match_rules

Solver = LinearSolver | AttentionSolver


@dataclass(frozen=True)
class Assignment:
    """How one linear is pruned.

    solver: the method with its settings, found under the name `method`; one of the attention matrix prunes the
            q and k of an attention together;
    refit:  none | cg | exact, of the kept weights after the solver;
    corrected: whether the target (or the attention matrix) is to be the dense model's on its own inputs;
    shares:  whether the sparsity is solve.sparsity, which solve.allocation may share out, and not a rule's own;
    kept:   the exact number of weights kept, where the whole model was ranked (scope `model`).
    """

    method: str
    solver: Solver
    sparsity: float
    pattern: str
    scope: str
    refit: str = "none"
    corrected: bool = False
    shares: bool = False
    kept: int | None = None

    @property
    def groups(self) -> tuple[int, int] | None:
        """(n_keep, group_size) of an N:M pattern."""
        return groups_of(self.pattern)

    @property
    def joint(self) -> bool:
        """Whether the method prunes q and k together."""
        return registry.find(self.method).joint

    @property
    def corrects_target(self) -> bool:
        """Whether the layer-wise target is corrected: weights that stay as they are have no use for it."""
        return self.corrected and (self.solver.refits or not self.joint)

    @property
    def leaves_dense(self) -> bool:
        """Whether nothing is to be removed."""
        groups = self.groups
        return self.sparsity == 0 if groups is None else groups[0] == groups[1]

    @property
    def removes_all(self) -> bool:
        """Whether nothing is to be kept."""
        return self.kept == 0 or (self.sparsity == 1 and self.groups is None)

    @property
    def summary(self) -> str:
        """Method and amount, for the log."""
        amount = f"sparsity {self.sparsity:g}" if self.groups is None else f"pattern {self.pattern}"
        return "dense" if self.leaves_dense else f"{amount}, {self.method}"

    def facts(self) -> dict[str, Any]:
        """What a result follows from, as JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "solver": dataclasses.asdict(self.solver)}  # type: ignore[call-overload]


def budget_of(assignments: Sequence[Assignment]) -> Budget:
    """The budget of linears that are solved together: alike but for their counts."""
    first = assignments[0]
    counts = [assignment.kept for assignment in assignments]
    kept = None if None in counts else tuple(counts)
    scope = "row" if first.scope == "row" else "linear"
    return Budget(first.sparsity, scope, first.groups, kept)  # type: ignore[arg-type]


def assign(params: Params, model: StreamedModel) -> dict[str, Assignment]:
    """The assignment of every linear of the model, by name.

    Raises ParameterError where a rule asks for what its method, or the linear's width, cannot do, ArchitectureError
    where linears cover too little of the model.
    """
    check_coverage(model, params.solve.max_uncovered)
    found, solvers = dict[str, Assignment](), dict[int | None, Solver]()
    linears = [linear for index in range(model.blocks) for linear in model.linears(index)]
    numbers = match_rules(params.solve.rules, linears, model.blocks)
    for linear, number in zip(linears, numbers, strict=True):
        rule = Rule() if number is None else params.solve.rules[number]
        if number not in solvers:
            solvers[number] = _solver_of(params, rule)
        found[linear.name] = _resolved(params, rule, solvers[number], linear)
        _check_counts(found[linear.name], linear, "solve" if rule.sparsity is None else f"solve.rules[{number}]")
    log_rules(numbers, linears, [found[linear.name].summary for linear in linears], "linears")
    for index in range(model.blocks):
        _check_pairs(model.linears(index), found)
    return _ranked(model, linears, numbers, found)


def _check_pairs(linears: Sequence[Linear], found: Mapping[str, Assignment]) -> None:
    """Raise ParameterError where a method of the attention matrix has anything but a block's q and k."""
    joint = [linear for linear in linears if found[linear.name].joint]
    roles, alike = {linear.role for linear in joint}, {found[linear.name] for linear in joint}
    if joint and (roles != {QUERY, KEY} or len(alike) > 1):
        method = found[joint[0].name].method
        raise ParameterError(
            f"solve.rules: {method} prunes {QUERY} and {KEY} together, got {', '.join(sorted(roles))} of block "
            f"{joint[0].block}: give it to both in one rule with roles: [{QUERY}, {KEY}], and only to them"
        )


def _solver_of(params: Params, rule: Rule) -> Solver:
    method = rule.method or params.solve.method
    removed = registry.find(method).removes
    if removed == "units":
        raise ParameterError(
            f"solve.rules: {method} removes whole heads and channels of all blocks: give it as solve.method, not in a "
            "rule beside layer-wise methods"
        )
    if removed == "width":
        raise ParameterError(f"solve.rules: {method} slices the whole model: give it as solve.method, without rules")
    settings = params.methods.get(method, {}) if rule.settings is None else rule.settings
    solver: Solver = registry.load(method, settings)
    return solver


def _resolved(params: Params, rule: Rule, solver: Solver, linear: Linear) -> Assignment:
    method = rule.method or params.solve.method
    asked = rule.scope or params.solve.scope
    scope = solver.scopes[0] if asked == "auto" else asked
    if scope not in solver.scopes:
        raise ParameterError(f"solve.scope: {method} works in {', '.join(solver.scopes)}, got {scope}")
    sparsity, pattern = sparsity_and_pattern(params.solve, rule)
    joint = registry.find(method).joint
    refit = "none" if joint else rule.refit or params.solve.refit
    corrected = params.solve.corrects(joint or solver.refits or refit != "none")
    assignment = Assignment(method, solver, sparsity, pattern, scope, refit, corrected, rule.sparsity is None)
    if assignment.groups and linear.shape[1] % assignment.groups[1]:
        raise ParameterError(
            f"solve.pattern: {assignment.pattern} does not divide the {linear.shape[1]} inputs of {linear.name}: use "
            "another group size, or a rule with `pattern: unstructured` for its role"
        )
    return assignment


def _check_counts(assignment: Assignment, linear: Linear, place: str) -> None:
    """Raise ParameterError where a sparsity between 0 and 1 rounds to all or nothing of what competes."""
    if assignment.groups is not None or assignment.scope == "model" or assignment.sparsity in (0, 1):
        return
    d_out, d_in = linear.shape
    total, what = (d_in, "a row") if assignment.scope == "row" else (d_out * d_in, "all")
    if removed_count(total, assignment.sparsity) in (0, total):
        raise ParameterError(
            f"{place}.sparsity: {assignment.sparsity:g} of the {total} weights of {what} of {linear.name} rounds to "
            f"{'none' if assignment.sparsity < 0.5 else 'all of them'}: expected {1 / total:.2g} to "
            f"{1 - 1 / total:.6g}, or exactly 0 or 1: change it, or give this linear a rule of its own"
        )


def _ranked(
    model: StreamedModel, linears: list[Linear], numbers: Sequence[int | None], found: dict[str, Assignment]
) -> dict[str, Assignment]:
    """Turn scope `model` into counts: the weights of all linears of one rule compete, or of none."""
    competing: dict[int | None, list[Linear]] = {}
    for number, linear in zip(numbers, linears, strict=True):
        assignment = found[linear.name]
        if assignment.scope == "model" and assignment.groups is None:
            competing.setdefault(number, []).append(linear)
    for together in competing.values():
        sparsity = found[together[0].name].sparsity

        def weights(together: list[Linear] = together) -> Iterable[Tensor]:
            return (model.weights.stored(linear).to(model.device) for linear in together)

        counts = kept_by_global_magnitude(weights, sparsity)
        for linear, kept in zip(together, counts, strict=True):
            found[linear.name] = dataclasses.replace(found[linear.name], kept=kept)
    return found
