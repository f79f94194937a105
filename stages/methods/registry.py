"""Registry of pruning methods: finds them by their file name, loads them with checked settings, lists them.

A method is enrolled by its file: `stages/methods/<family>/<name>.py` makes `<name>` a value of solve.method and of
rules. The file defines one frozen dataclass with a class variable `paper`; its fields are the settings of
`methods.<name>` in params.yaml, its `__post_init__` raises ParameterError for values that make no sense, and calling it
solves the problem of its family (see the family's contract.py). Nothing else has to be registered: the laws in
tests/unit/methods run for every file. docs/adding-a-method.md is a walk-through.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from stages.errors import ParameterError, unknown

Family = Literal["linear", "attention", "units", "gates", "rotation"]
"""What a method prunes and how: a folder each, in which every file but those of SHARED is a method."""
SHARED = frozenset({"__init__", "contract", "ranking"})
"""Names of files in the families' folders that are no methods."""

TITLES: dict[Family, str] = {
    "linear": "Weights of linears (solve.method, or a rule's):",
    "attention": "The attention matrix, by the weights of q and k (a rule's for attention.q and attention.k):",
    "units": "Whole heads and channels (solve.method; solve.units, assemble.layout):",
    "gates": "Whole heads and channels, by gates that are trained (solve.method; solve.units, assemble.layout):",
    "rotation": "The width of the hidden states (solve.method):",
}
"""Heading of each family in `describe_methods`: what its methods prune, and where params.yaml names them."""
REMOVED: dict[Family, Literal["weights", "units", "width"]] = {
    "linear": "weights",
    "attention": "weights",
    "units": "units",
    "gates": "units",
    "rotation": "width",
}
"""What each family removes: single weights of linears, heads and channels, or components of the hidden states."""


@dataclass(frozen=True)
class Method:
    """A pruning method: its name, its family, and the dataclass that implements it."""

    name: str
    family: Family

    @property
    def module(self) -> str:
        """Dotted name of the method's module."""
        return f"{__package__}.{self.family}.{self.name}"

    @property
    def settings(self) -> Any:
        """The method's class, a frozen dataclass of its settings: the one that its file defines with a `paper`."""
        module = importlib.import_module(self.module)
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "paper")
        ]
        if len(classes) != 1:
            raise TypeError(f"{module.__name__}: expected one class with a `paper`, got {len(classes)}")
        return classes[0]

    @property
    def removes(self) -> Literal["weights", "units", "width"]:
        """What it removes: single weights of linears, whole heads and channels, or components of the hidden states."""
        return REMOVED[self.family]

    @property
    def joint(self) -> bool:
        """Whether it prunes the q and k of an attention jointly, toward the attention matrix, and no other linear."""
        return self.family == "attention"


@cache
def names(family: Family | None = None) -> tuple[str, ...]:
    """Sorted names of the methods of one family, or of all; the folders are read once a process."""
    families = TITLES if family is None else (family,)
    stems = (path.stem for folder in families for path in (Path(__file__).parent / folder).glob("*.py"))
    return tuple(sorted(name for name in stems if name not in SHARED))


def find(name: str) -> Method:
    """The method of this name; raises ParameterError, with the nearest names, if there is none."""
    for family in TITLES:
        if name in names(family):
            return Method(name, family)
    raise ParameterError(unknown("method", name, names()))


def modules_of(name: str, method: Any) -> set[str]:
    """Dotted names of the modules of a method and of the methods that its settings name (attention_iht's `start`).

    Keys of finished blocks hash their source; a method that is found by name is in no import statement.
    """
    named = {value for value in dataclasses.asdict(method).values() if isinstance(value, str)}
    return {find(method_name).module for method_name in {name, *(named & set(names()))}}


def load(name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """The method with these settings: a LinearSolver, an AttentionSolver, a UnitScorer, a UnitMethod or a SliceGpt.

    Raises ParameterError that names a setting which is unknown, wrong, or without effect: a class's `idle` maps a
    setting to another one and its values beside which it is not used.
    """
    kind, known = find(name).settings, settings_of(name)
    for setting in settings or {}:
        if setting not in known:
            raise ParameterError(f"methods.{name}: {unknown('setting', setting, known)}")
    try:
        method = TypeAdapter(kind).validate_python(dict(settings or {}))
    except ParameterError as error:
        raise ParameterError(f"methods.{name}.{error}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ParameterError(f"methods.{name}.{place}: {fault['msg']}, got {fault['input']!r}") from None
    for setting, (other, values) in getattr(kind, "idle", {}).items():
        if getattr(method, other) in values and getattr(method, setting) != known[setting]:
            raise ParameterError(
                f"methods.{name}.{setting}: {other} {getattr(method, other)} makes no use of it: expected "
                f"{known[setting]}, got {getattr(method, setting)}: set {other} to another value, or take it out"
            )
    return method


def settings_of(name: str) -> dict[str, Any]:
    """Names and default values of a method's settings."""
    return {field.name: field.default for field in dataclasses.fields(find(name).settings)}


def describe_methods() -> str:
    """All methods by family, each with its paper, what `auto` means for it and its settings: `solve --list`."""
    lines, width = list[str](), max(map(len, names()))
    for family, title in TITLES.items():
        lines += ["", title] if lines else [title]
        for name in names(family):
            kind, settings = find(name).settings, settings_of(name)
            facts = [", ".join(f"{key}={value}" for key, value in settings.items())] if settings else []
            if REMOVED[family] == "units":
                facts = [f"allocation {kind.allocation}, compensation {kind.compensation}", *facts]
            elif REMOVED[family] == "weights":
                facts = [f"scope {' or '.join(kind.scopes)}", *facts]
            lines += [f"  {name:<{width}}  {kind.paper}", f"  {'':<{width}}  {'; '.join(facts)}"]
    return "\n".join(lines)
