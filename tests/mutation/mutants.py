"""Single-fault mutants of the mathematical rooms by Cosmic Ray's operators, and a seeded sample of them."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import OPERATOR_PROVIDERS

ROOMS = ("linalg", "methods", "walk", "solving", "gating", "measuring")
SKIPPED = {"stages/linalg/kernels/tile_cuda.py": "needs Triton"}

ARITHMETIC = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}
RANDOM = {"VariableReplacer", "VariableInserter"}  # they draw unseeded random numbers


def _operators() -> dict[str, Any]:
    """Cosmic Ray's own operators, less those that only make a TypeError: `+` becomes no shift, `&` no product."""
    core = OPERATOR_PROVIDERS["core"]
    kept = {}
    for name in core:
        kind, *change = name.split("_")
        crosses = kind == "ReplaceBinaryOperator" and len({part in ARITHMETIC for part in change}) > 1
        if kind not in RANDOM and not crosses:
            kept[name] = core[name]()
    return kept


OPERATORS = _operators()

ALIKE = 0.75
"""Lines less alike than this are others."""


@dataclass(frozen=True)
class Mutant:
    """One changed operator, number, condition, loop or decorator of one file.

    before, after: the changed lines, stripped; with path and operator they identify the mutant on a later tree.
    """

    path: str
    line: int
    operator: str
    occurrence: int
    before: str
    after: str

    @property
    def room(self) -> str:
        return self.path.split("/")[1]

    @property
    def identity(self) -> tuple[str, str, str]:
        """What stays when the code around the mutant moves, to another file even."""
        return self.operator, self.before, self.after

    def source(self, root: Path) -> str:
        """Raises ValueError if the tree has no such mutant."""
        code = mutated((root / self.path).read_text(), self.operator, self.occurrence)
        if code is None:
            raise ValueError(f"{self.path} has no mutant {self.operator} number {self.occurrence}")
        return code


class Site(NamedTuple):
    """A position in a file: its line and its replacements, as (operator, occurrence)."""

    line: int
    choices: list[tuple[str, int]]


class _Sites(Visitor):  # type: ignore[misc]
    """Positions of every operator: {(kind, start, end): [(operator, occurrence)]}."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(OPERATORS, 0)
        self.sites = dict[tuple[str, Any, Any], list[tuple[str, int]]]()

    def visit(self, node: Any) -> Any:
        for name, operator in OPERATORS.items():
            for start, end in operator.mutation_positions(node):
                key = name.split("_")[0], start, end
                self.sites.setdefault(key, []).append((name, self.counts[name]))
                self.counts[name] += 1
        return node


def mutated(code: str, operator: str, occurrence: int) -> str | None:
    return MutationVisitor.mutate_code(code, OPERATORS[operator], occurrence)  # type: ignore[no-any-return]


GUARDS = {"strict", "frozen", "slots"}
"""Keywords of `zip` and `dataclass` that only refuse what correct code does not do."""


class _Effective(ast.NodeTransformer):
    """Drops what no run evaluates, annotations of functions and unions in all others, and guards of `GUARDS`."""

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg in GUARDS else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if isinstance(node.annotation, ast.BinOp):
            node.annotation = ast.Name("union")
        return self.generic_visit(node)


def meaning(code: str) -> str | None:
    """The code's syntax tree without what has no effect; None where it does not parse."""
    try:
        return ast.dump(_Effective().visit(ast.parse(code)))
    except SyntaxError:
        return None


def changed_lines(before: str, after: str) -> tuple[int, str, str]:
    """First differing line's number, and the lines that differ, before and after."""
    old, new = before.splitlines(), after.splitlines()
    start = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    end = 0
    while end < min(len(old), len(new)) - start - 1 and old[-1 - end] == new[-1 - end]:
        end += 1
    parts = [" ".join(" ".join(x[start : len(x) - end]).split()) for x in (old, new)]
    return start + 1, *parts


@cache
def sites_of(code: str) -> list[Site]:
    """Every position that some operator changes, in order of the file."""
    visitor = _Sites()
    visitor.walk(get_ast(code))
    ordered = sorted(visitor.sites.items(), key=lambda item: (item[0][1], item[0]))
    return [Site(start[0], choices) for (_, start, _), choices in ordered]


def mutant(path: str, code: str, operator: str, occurrence: int) -> Mutant | None:
    """None where the change does not parse or has no effect."""
    changed = mutated(code, operator, occurrence)
    if changed is None or meaning(changed) in (None, meaning(code)):
        return None
    line, before, after = changed_lines(code, changed)
    return Mutant(path, line, operator, occurrence, before, after)


def files(root: Path, room: str) -> list[str]:
    found = (path.relative_to(root).as_posix() for path in sorted((root / "stages" / room).rglob("*.py")))
    return [path for path in found if path not in SKIPPED]


def sample(root: Path, size: int, seed: int) -> list[Mutant]:
    """`size` mutants, equally many of every room, each position of a room as likely as any other."""
    chosen = list[Mutant]()
    for index, room in enumerate(ROOMS):
        draw = random.Random(f"{seed} {room}")
        code = {path: (root / path).read_text() for path in files(root, room)}
        positions = [(path, site) for path in code for site in sites_of(code[path])]
        draw.shuffle(positions)
        share = size * (index + 1) // len(ROOMS) - size * index // len(ROOMS)
        drawn = (mutant(path, code[path], *draw.choice(site.choices)) for path, site in positions)
        effective = islice((one for one in drawn if one is not None), share)
        chosen += sorted(effective, key=lambda one: (one.path, one.line))
    return chosen


def again(root: Path, wanted: Mutant) -> Mutant | None:
    """The same mutant on a later tree, or the one most alike where names have changed; None where its line is gone."""
    best, found = ALIKE, None
    for path in (path for room in ROOMS for path in files(root, room)):
        code = (root / path).read_text()
        near = {number for number, line in enumerate(code.splitlines(), 1) if _resembles(line.strip(), wanted.before)}
        for site in sites_of(code) if near else ():
            for operator, occurrence in site.choices:
                if site.line in near and operator == wanted.operator:
                    one = mutant(path, code, operator, occurrence)
                    alike = 0.0 if one is None else _likeness(wanted, one) + 0.01 * (path == wanted.path)
                    if alike > best:
                        best, found = alike, one
    return found


def _resembles(line: str, before: str) -> bool:
    pair = SequenceMatcher(None, line, before, autojunk=False)
    return line != "" and (line in before or pair.quick_ratio() > ALIKE)


def _likeness(one: Mutant, other: Mutant) -> float:
    """1 for the same lines, before and after."""
    pairs = (one.before, other.before), (one.after, other.after)
    return min(SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs)
