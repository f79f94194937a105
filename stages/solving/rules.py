"""Which rule of solve.rules governs which part of the model: the first that matches."""

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
"""What a rule can speak of."""


def match_rules(rules: Sequence[Rule], parts: Sequence[Part], blocks: int) -> list[int | None]:
    """For each part the number of its rule, None where no rule matches.

    Raises ParameterError for a rule that speaks of blocks or roles that are not there, or that never applies
    because rules before it match all its parts.
    """
    matching = [_matched(number, rule, parts, blocks) for number, rule in enumerate(rules)]
    found = list[int | None]()
    for place in range(len(parts)):
        found.append(next((number for number, matched in enumerate(matching) if place in matched), None))
    for number, matched in enumerate(matching):
        first = {found[place] for place in matched}
        if number not in first:
            names = " and ".join(f"rules[{one}]" for one in sorted(one for one in first if one is not None))
            raise ParameterError(
                f"solve.rules[{number}] never applies: all it speaks of is matched before, by {names}: put it before "
                "them, or take it out"
            )
    return found


def _matched(number: int, rule: Rule, parts: Sequence[Part], blocks: int) -> set[int]:
    """Places of the parts that the rule speaks of, whatever rules come before it."""
    try:
        chosen = range(blocks) if rule.blocks is None else resolve_numbers(rule.blocks, blocks)
    except ValueError as error:
        raise ParameterError(f"solve.rules[{number}].blocks: the model has {blocks} blocks: {error}") from None
    within = {place: part for place, part in enumerate(parts) if part.block in set(chosen)}
    for role in rule.roles or ():
        if not any(_is(part.role, role) for part in within.values()):
            there = {part.role.partition(".")[0] for part in within.values()} | {part.role for part in within.values()}
            raise ParameterError(
                f"solve.rules[{number}].roles: nothing in blocks {as_ranges(chosen)} has the role {role}: expected "
                f"some of {', '.join(sorted(there))}"
            )
    roles = rule.roles
    return {place for place, part in within.items() if roles is None or any(_is(part.role, role) for role in roles)}


def _is(role: str, asked: str) -> bool:
    """Whether a role is the one asked for, or of the group asked for."""
    return asked in (role, role.partition(".")[0])


def log_rules(found: Sequence[int | None], parts: Sequence[Part], facts: Sequence[str], noun: str) -> None:
    """Log what each rule governs; facts: what becomes of each part."""
    for number in sorted({one for one in found if one is not None}):
        ours = [place for place, one in enumerate(found) if one == number]
        kinds = dict.fromkeys(facts[place] for place in ours)
        blocks = as_ranges({parts[place].block for place in ours})
        log.info("solve.rules[%d]: blocks %s: %d %s, %s", number, blocks, len(ours), noun, "; ".join(kinds))
    left = [place for place, one in enumerate(found) if one is None]
    if left and len(left) < len(found):
        kinds = dict.fromkeys(facts[place] for place in left)
        log.info("no rule: %d %s, %s", len(left), noun, "; ".join(kinds))
