"""solve: the pruning method, how much it removes, in which pattern, on which inputs, and rules for parts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from stages.errors import unknown
from stages.linalg.masks import groups_of
from stages.models.roles import ROLES
from stages.params.amounts import sparsity_and_pattern
from stages.params.base import Fraction, Positive, Section
from stages.params.faults import fault_at
from stages.params.ranges import Numbers
from stages.params.units import UnitSettings

Pattern = Annotated[str, Field(pattern=r"^(unstructured|[1-9]\d*:[1-9]\d*)$")]
"""`unstructured`, or N:M: N weights of every group of M are kept."""
Scope = Literal["auto", "row", "linear", "model"]
"""Among which weights compete: those of a row, a linear or all linears; auto: the method's own."""
Refit = Literal["none", "cg", "exact"]
"""Least squares of kept weights after the method: none, some steps of conjugate gradients, or solved exactly."""
Roles = Annotated[
    tuple[str, ...], BeforeValidator(lambda roles: [roles] if isinstance(roles, str) else roles), Field(min_length=1)
]


def _checked_pattern(pattern: str | None) -> str | None:
    """Raises ValueError for N:M with N > M."""
    groups = groups_of(pattern or "")
    if groups is not None and groups[0] > groups[1]:
        raise ValueError(f"{pattern} keeps more than it has: expected N:M with N <= M")
    return pattern


class Rule(Section):
    """One of solve.rules: how the linears it selects are pruned. The first rule that matches a linear governs it.

    roles:    roles (`attention.q`) or their groups (`attention`); None matches all.
    blocks:   blocks and ranges of them (`[0, 2, -1]`, `"0-2"`, `{from: 0, to: 2}`); None matches all.
    method, sparsity, pattern, scope, refit: as of solve, which they are inherited from where omitted.
    settings: settings of this rule's method; required when the method is not solve.method, whose
              settings are in methods.<name>.
    """

    roles: Roles | None = None
    blocks: Numbers | None = None
    method: str | None = None
    sparsity: Fraction | None = None
    pattern: Pattern | None = None
    scope: Scope | None = None
    refit: Refit | None = None
    settings: dict[str, Any] | None = None

    _pattern = field_validator("pattern")(_checked_pattern)

    @field_validator("roles")
    @classmethod
    def _known_roles(cls, roles: tuple[str, ...] | None) -> tuple[str, ...] | None:
        known = sorted(set(ROLES) | {role.split(".")[0] for role in ROLES})
        for number, role in enumerate(roles or ()):
            if role not in known:
                raise fault_at(f"[{number}]", unknown("role", role, known))
        return roles


class Solve(Section):
    """solve: which method prunes, how much, in which pattern, on which inputs."""

    method: str
    """Name of a file in stages/methods."""
    sparsity: Fraction | None = None
    """Fraction removed, of weights or of units' parameters; None: what an N:M pattern removes."""
    pattern: Pattern = "unstructured"
    scope: Scope = "auto"
    inputs: Literal["dense", "pruned"] = "pruned"
    """Inputs that a block is calibrated on: the dense model's, or those that the pruned blocks before it give."""
    walk: Literal["auto", "block", "ordered"] = "auto"
    """Statistics of a block's linears: all from one pass, or each after the linears before it are pruned."""
    target: Literal["auto", "dense", "corrected"] = "auto"
    """Outputs that pruned linears are fitted to: those of the dense weights on the pruned model's inputs, or corrected
    toward those of the dense model on its own; auto: corrected if kept weights change."""
    correction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the correction that is applied, of the strength that is best on held-out sequences."""
    correction_ridges: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (0.1, 1.0)
    """Ridges that are tried, as fractions of the Gram matrix's diagonal; each linear takes the best on held-out
    sequences."""
    refit: Refit = "none"
    refit_steps: Positive = 10
    """Steps of conjugate gradients, where refit is cg."""
    refit_ridge: Annotated[float, Field(ge=0)] = 0.1
    """Added to the diagonal of the unit-diagonal Gram matrix in refits."""
    allocation: Literal["uniform", "owl", "error"] = "uniform"
    """Which linears lose more than others: none; those of blocks with few outliers (OWL); those with little error."""
    allocation_spread: Annotated[float, Field(gt=0, le=1)] = 0.08
    """Largest difference of a linear's sparsity from `sparsity`."""
    allocation_outlier: Annotated[float, Field(gt=0)] = 5.0
    """owl: scores |w| ‖x‖ above this many times their mean are outliers."""
    units: UnitSettings = UnitSettings()
    """Settings of structured methods."""
    max_uncovered: Fraction = 0.05
    """Largest share of the blocks' weights outside of linears (experts, say), which stay dense, that is accepted."""
    rules: tuple[Rule, ...] = ()
    """Exceptions for parts of the model."""

    _pattern = field_validator("pattern")(_checked_pattern)

    @model_validator(mode="after")
    def _settings_where_they_are_tracked(self) -> Solve:
        """Refuse a rule that names another method without settings: DVC tracks methods.<solve.method> only."""
        for i, rule in enumerate(self.rules):
            if rule.method not in (None, self.method) and rule.settings is None:
                raise fault_at(
                    f"rules[{i}]",
                    f"it uses {rule.method}, whose settings must stand in the rule itself: add `settings: {{}}` "
                    "(methods.<name> is read, and tracked by DVC, for solve.method only)",
                )
        return self

    @model_validator(mode="after")
    def _dense_inputs_know_no_walk(self) -> Solve:
        """Refuse a walk or a target that needs the pruned model's inputs where inputs are dense."""
        if self.inputs == "dense":
            for name, value, only in (("walk", self.walk, "block"), ("target", self.target, "dense")):
                if value not in ("auto", only):
                    raise ValueError(
                        f"{name}: {value} needs the pruned model's inputs: set inputs to pruned, or {name} to {only}"
                    )
        return self

    @property
    def amount(self) -> float:
        """Fraction removed where no rule says otherwise: `sparsity`, or 1 - N/M of the pattern."""
        return sparsity_and_pattern(self, Rule())[0]

    @property
    def ordered(self) -> bool:
        """Whether a linear is calibrated after the linears before it in its block have been pruned."""
        return self.inputs == "pruned" and self.walk != "block"

    def corrects(self, refits: bool) -> bool:
        """Whether a linear's target is corrected toward the dense outputs. refits: whether kept weights change."""
        return self.inputs == "pruned" and (self.target == "corrected" or (self.target == "auto" and refits))

    def methods(self) -> set[str]:
        """Names of all methods in use, those of rules included."""
        return {self.method, *(rule.method for rule in self.rules if rule.method is not None)}
