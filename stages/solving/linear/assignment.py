"""Assignments: the method, sparsity and scope that prune each linear, resolved from solve and its rules."""

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
    """How one linear is pruned; linears with equal assignments and the same input are solved together.

    method:    name of the method.
    solver:    the method with its settings; one of the attention matrix prunes q and k jointly.
    sparsity:  fraction removed, where the pattern is unstructured.
    pattern:   `unstructured`, or N:M as "2:4".
    scope:     among which weights compete: row | linear | model.
    refit:     none | cg | exact: least squares of the kept weights after the solver.
    corrected: whether the target (or the attention matrix) is the dense model's, on the dense model's own inputs.
    shares:    whether the sparsity is solve.sparsity, which solve.allocation may share out, and not a rule's own.
    kept:      exact number of weights kept, where a ranking or an allocation over the model has set it.
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
        """(n_keep, group_size) of an N:M pattern, None for unstructured."""
        return groups_of(self.pattern)

    @property
    def joint(self) -> bool:
        """Whether the method prunes q and k jointly, toward the attention matrix."""
        return registry.find(self.method).joint

    @property
    def corrects_target(self) -> bool:
        """Whether the layer-wise target is corrected: of no use where a joint method leaves kept weights unchanged."""
        return self.corrected and (self.solver.refits or not self.joint)

    @property
    def leaves_dense(self) -> bool:
        """Whether no weight is removed."""
        groups = self.groups
        return self.sparsity == 0 if groups is None else groups[0] == groups[1]

    @property
    def removes_all(self) -> bool:
        """Whether every weight is removed."""
        return self.kept == 0 or (self.sparsity == 1 and self.groups is None)

    @property
    def summary(self) -> str:
        """Method and amount for the log, such as "sparsity 0.5, wanda"."""
        amount = f"sparsity {self.sparsity:g}" if self.groups is None else f"pattern {self.pattern}"
        return "dense" if self.leaves_dense else f"{amount}, {self.method}"

    def facts(self) -> dict[str, Any]:
        """All fields as JSON values, the solver by its settings: what a result depends on."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "solver": dataclasses.asdict(self.solver)}  # type: ignore[call-overload]


def budget_of(assignments: Sequence[Assignment]) -> Budget:
    """The Budget of linears that are solved together: alike in all but their counts."""
    first = assignments[0]
    counts = [assignment.kept for assignment in assignments]
    kept = None if None in counts else tuple(counts)
    scope = "row" if first.scope == "row" else "linear"
    return Budget(first.sparsity, scope, first.groups, kept)  # type: ignore[arg-type]


def assign(params: Params, model: StreamedModel) -> dict[str, Assignment]:
    """The assignment of every linear of the model, by its name.

    Raises ParameterError where a rule asks for what its method, or the linear's width, cannot do, ArchitectureError
    where linears hold too small a share of the blocks' weights.
    """
    check_coverage(model, params.solve.max_uncovered)
    assignments, solvers = dict[str, Assignment](), dict[int | None, Solver]()
    linears = [linear for index in range(model.blocks) for linear in model.linears(index)]
    numbers = match_rules(params.solve.rules, linears, model.blocks)
    for linear, number in zip(linears, numbers, strict=True):
        rule = Rule() if number is None else params.solve.rules[number]
        if number not in solvers:
            solvers[number] = _load_solver(params, rule)
        assignment = _assignment(params, rule, solvers[number], linear)
        _check_counts(assignment, linear, "solve" if rule.sparsity is None else f"solve.rules[{number}]")
        assignments[linear.name] = assignment
    log_rules(numbers, linears, [assignments[linear.name].summary for linear in linears], "linears")
    for index in range(model.blocks):
        _check_joint(model.linears(index), assignments)
    return _with_global_counts(model, linears, numbers, assignments)


def _check_joint(linears: Sequence[Linear], assignments: Mapping[str, Assignment]) -> None:
    """Raise ParameterError where a method of the attention matrix is given anything but a block's q and k, alike."""
    joint = [linear for linear in linears if assignments[linear.name].joint]
    roles, alike = {linear.role for linear in joint}, {assignments[linear.name] for linear in joint}
    if joint and (roles != {QUERY, KEY} or len(alike) > 1):
        method = assignments[joint[0].name].method
        raise ParameterError(
            f"solve.rules: {method} prunes {QUERY} and {KEY} together, got {', '.join(sorted(roles))} of block "
            f"{joint[0].block}: give it to both in one rule with roles: [{QUERY}, {KEY}], and only to them"
        )


def _load_solver(params: Params, rule: Rule) -> Solver:
    """A rule's method with its settings; raises ParameterError for one that does not prune single weights."""
    method = rule.method or params.solve.method
    removes = registry.find(method).removes
    if removes == "units":
        raise ParameterError(
            f"solve.rules: {method} removes whole heads and channels of all blocks: give it as solve.method, not in a "
            "rule beside layer-wise methods"
        )
    if removes == "width":
        raise ParameterError(f"solve.rules: {method} slices the whole model: give it as solve.method, without rules")
    settings = params.methods.get(method, {}) if rule.settings is None else rule.settings
    solver: Solver = registry.load(method, settings)
    return solver


def _assignment(params: Params, rule: Rule, solver: Solver, linear: Linear) -> Assignment:
    """What a rule, completed from solve, makes of one linear."""
    method = rule.method or params.solve.method
    wanted = rule.scope or params.solve.scope
    scope = solver.scopes[0] if wanted == "auto" else wanted
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


def _with_global_counts(
    model: StreamedModel, linears: list[Linear], numbers: Sequence[int | None], assignments: dict[str, Assignment]
) -> dict[str, Assignment]:
    """Turn scope `model` into exact counts: the weights of all linears that one rule governs (or none) compete."""
    competing: dict[int | None, list[Linear]] = {}
    for number, linear in zip(numbers, linears, strict=True):
        assignment = assignments[linear.name]
        if assignment.scope == "model" and assignment.groups is None:
            competing.setdefault(number, []).append(linear)
    for together in competing.values():
        sparsity = assignments[together[0].name].sparsity

        def weights(together: list[Linear] = together) -> Iterable[Tensor]:
            return (model.weights.stored(linear).to(model.device) for linear in together)

        counts = kept_by_global_magnitude(weights, sparsity)
        for linear, kept in zip(together, counts, strict=True):
            assignments[linear.name] = dataclasses.replace(assignments[linear.name], kept=kept)
    return assignments
