"""Matches solve.rules to the parts of a model: the first rule that matches a part governs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from stages.errors import ParameterError
from stages.models.structure import Linear
from stages.params.pruning import Rule
from stages.params.ranges import as_ranges, resolve_numbers

log = logging.getLogger("secateur")


@dataclass(frozen=True)
class BlockUnits:
    """All heads (role `attention`) or all MLP channels (role `mlp`) of one block, as solve.rules selects them."""

    role: str
    block: int


Part = Linear | BlockUnits
"""What a rule can select: a linear, or all heads or channels of a block."""


def match_rules(rules: Sequence[Rule], parts: Sequence[Part], blocks: int) -> list[int | None]:
    """The number of the rule that governs each part, None where no rule matches.

    Raises ParameterError for a rule whose blocks or roles do not exist, or that never applies because rules before it
    match all its parts.
    """
    matches = [_matched_parts(number, rule, parts, blocks) for number, rule in enumerate(rules)]
    governing = list[int | None]()
    for position in range(len(parts)):
        governing.append(next((number for number, matched in enumerate(matches) if position in matched), None))
    for number, matched in enumerate(matches):
        winners = {governing[position] for position in matched}
        if number not in winners:
            names = " and ".join(f"rules[{rule}]" for rule in sorted(rule for rule in winners if rule is not None))
            raise ParameterError(
                f"solve.rules[{number}] never applies: all it speaks of is matched before, by {names}: put it before "
                "them, or take it out"
            )
    return governing


def _matched_parts(number: int, rule: Rule, parts: Sequence[Part], blocks: int) -> set[int]:
    """Positions of the parts that a rule matches, whatever rules come before it."""
    try:
        selected = range(blocks) if rule.blocks is None else resolve_numbers(rule.blocks, blocks)
    except ValueError as error:
        raise ParameterError(f"solve.rules[{number}].blocks: the model has {blocks} blocks: {error}") from None
    within = {position: part for position, part in enumerate(parts) if part.block in set(selected)}
    roles = {part.role for part in within.values()}
    for role in rule.roles or ():
        if not any(_has_role(known, role) for known in roles):
            known_roles = sorted(roles | {known.partition(".")[0] for known in roles})
            raise ParameterError(
                f"solve.rules[{number}].roles: nothing in blocks {as_ranges(selected)} has the role {role}: expected "
                f"some of {', '.join(known_roles)}"
            )
    if rule.roles is None:
        return set(within)
    return {position for position, part in within.items() if any(_has_role(part.role, role) for role in rule.roles)}


def _has_role(role: str, wanted: str) -> bool:
    """Whether a role (`attention.q`) is the wanted one, or of the wanted group (`attention`)."""
    return wanted in (role, role.partition(".")[0])


def log_rules(governing: Sequence[int | None], parts: Sequence[Part], outcomes: Sequence[str], noun: str) -> None:
    """Log which parts each rule governs and their outcomes (one a part, such as "sparsity 0.5, wanda").

    governing: as from `match_rules`; noun: what the parts are called, "linears".
    """
    for number in sorted({rule for rule in governing if rule is not None}):
        positions = [position for position, rule in enumerate(governing) if rule == number]
        kinds = dict.fromkeys(outcomes[position] for position in positions)
        blocks = as_ranges({parts[position].block for position in positions})
        log.info("solve.rules[%d]: blocks %s: %d %s, %s", number, blocks, len(positions), noun, "; ".join(kinds))
    left = [position for position, rule in enumerate(governing) if rule is None]
    if left and len(left) < len(governing):
        kinds = dict.fromkeys(outcomes[position] for position in left)
        log.info("no rule: %d %s, %s", len(left), noun, "; ".join(kinds))
