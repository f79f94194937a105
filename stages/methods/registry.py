"""Find methods by their file name and check their settings."""

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
"""What methods prune and by what: a folder of this room each, in which every file that is not SHARED is a method."""
SHARED = frozenset({"__init__", "contract", "ranking"})

TITLES: dict[Family, str] = {
    "linear": "Weights of linears (solve.method, or a rule's):",
    "attention": "The attention matrix, by the weights of q and k (a rule's for attention.q and attention.k):",
    "units": "Whole heads and channels (solve.method; solve.units, assemble.layout):",
    "gates": "Whole heads and channels, by gates that are trained (solve.method; solve.units, assemble.layout):",
    "rotation": "The width of the hidden states (solve.method):",
}
"""What the methods of each family prune, and where they are named."""
REMOVED: dict[Family, Literal["weights", "units", "width"]] = {
    "linear": "weights",
    "attention": "weights",
    "units": "units",
    "gates": "units",
    "rotation": "width",
}


@dataclass(frozen=True)
class Method:
    """A pruning method as it is found by its name: its family, and the dataclass of its settings."""

    name: str
    family: Family

    @property
    def module(self) -> str:
        """Dotted name of its module."""
        return f"{__package__}.{self.family}.{self.name}"

    @property
    def settings(self) -> Any:
        """The dataclass that the method's file defines: the one with a `paper`."""
        module = importlib.import_module(self.module)
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "paper")
        ]
        if len(found) != 1:
            raise TypeError(f"{module.__name__}: expected one class with a `paper`, got {len(found)}")
        return found[0]

    @property
    def removes(self) -> Literal["weights", "units", "width"]:
        """Single weights of linears, whole heads and channels, or components of the hidden states."""
        return REMOVED[self.family]

    @property
    def joint(self) -> bool:
        """Whether it prunes the q and k of an attention together, toward the attention matrix, and alone."""
        return self.family == "attention"


@cache
def names(family: Family | None = None) -> tuple[str, ...]:
    """Names of the methods of one family, or of all. Looked up once."""
    families = TITLES if family is None else (family,)
    found = (path.stem for one in families for path in (Path(__file__).parent / one).glob("*.py"))
    return tuple(sorted(name for name in found if name not in SHARED))


def find(name: str) -> Method:
    """The method of this name; raises ParameterError if there is no such file."""
    for family in TITLES:
        if name in names(family):
            return Method(name, family)
    raise ParameterError(unknown("method", name, names()))


def modules_of(name: str, method: Any) -> set[str]:
    """Modules of a method and of the methods that its settings name, which it finds by these names itself."""
    named = {value for value in dataclasses.asdict(method).values() if isinstance(value, str)}
    return {find(one).module for one in {name, *(named & set(names()))}}


def load(name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """The method with these settings, a LinearSolver, an AttentionSolver, a UnitScorer or a UnitMethod.

    Raises ParameterError that names the setting which is wrong, or could have no effect: `idle` of a class says of a
    setting beside which values of another one it is not used.
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
    """Names and defaults of a method's settings."""
    return {field.name: field.default for field in dataclasses.fields(find(name).settings)}


def describe_methods() -> str:
    """Every method with its paper, what `auto` stands for and its settings, family by family, to read in a terminal."""
    lines, width = list[str](), max(map(len, names()))
    for family, title in TITLES.items():
        lines += ["", title] if lines else [title]
        for name in names(family):
            kind, settings = find(name).settings, settings_of(name)
            told = [", ".join(f"{key}={value}" for key, value in settings.items())] if settings else []
            if REMOVED[family] == "units":
                told = [f"allocation {kind.allocation}, compensation {kind.compensation}", *told]
            elif REMOVED[family] == "weights":
                told = [f"scope {' or '.join(kind.scopes)}", *told]
            lines += [f"  {name:<{width}}  {kind.paper}", f"  {'':<{width}}  {'; '.join(told)}"]
    return "\n".join(lines)
