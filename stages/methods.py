"""Find methods by their file name and check their settings."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from stages.errors import ParameterError, unknown

Room = Literal["solvers", "attention", "structured", "gating", "rotations"]
SHARED: dict[Room, frozenset[str]] = {
    "solvers": frozenset({"__init__", "contract"}),
    "attention": frozenset({"__init__", "contract", "matrix", "fused"}),
    "structured": frozenset({"__init__", "contract", "ranking", "taylor"}),
    "gating": frozenset({"__init__", "baselines", "gate", "gates", "gating", "groups", "inputs", "slices"}),
    "rotations": frozenset({"__init__"}),
}
"""Rooms of methods: layer-wise, of the attention matrix, of whole units by scores and by trained gates, of the hidden
width. The files there that are none."""

TITLES: dict[Room, str] = {
    "solvers": "Weights of linears (solve.method, or a rule's):",
    "attention": "The attention matrix, by the weights of q and k (a rule's for attention.q and attention.k):",
    "structured": "Whole heads and channels (solve.method; solve.units, assemble.layout):",
    "gating": "Whole heads and channels, by gates that are trained (solve.method; solve.units, assemble.layout):",
    "rotations": "The width of the hidden states (solve.method):",
}
"""What the methods of each room prune, and where they are named."""
UNIT_ROOMS: frozenset[Room] = frozenset({"structured", "gating"})


@cache
def names(room: Room | None = None) -> tuple[str, ...]:
    """Names of the methods of one room, or of all: every file that is not shared machinery. Looked up once."""
    rooms = SHARED if room is None else {room: SHARED[room]}
    found = (path.stem for room, shared in rooms.items() for path in _files(room) if path.stem not in shared)
    return tuple(sorted(found))


def room_of(name: str) -> Room:
    """Where a method stands; raises ParameterError if there is no such file."""
    for room in SHARED:
        if name in names(room):
            return room
    raise ParameterError(unknown("method", name, names()))


def removes_units(name: str) -> bool:
    """Whether a method removes whole heads and channels; raises ParameterError if there is no such file."""
    return room_of(name) in UNIT_ROOMS


def module_of(name: str) -> str:
    """Dotted name of the method's module; raises ParameterError if there is no such file."""
    return f"stages.{room_of(name)}.{name}"


def modules_of(name: str, method: Any) -> set[str]:
    """Modules of a method and of the methods that its settings name, which it finds by these names itself."""
    named = {value for value in dataclasses.asdict(method).values() if isinstance(value, str)}
    return {module_of(one) for one in {name, *(named & set(names()))}}


def class_of(name: str) -> Any:
    """The dataclass that the method's file defines; raises ParameterError if there is no such file."""
    module = importlib.import_module(module_of(name))
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "paper")
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__}: expected one class with a `paper`, got {len(found)}")
    return found[0]


def load(name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """The method with these settings, a LinearSolver, an AttentionSolver, a UnitScorer or a UnitMethod.

    Raises ParameterError that names the setting which is wrong, or could have no effect: `idle` of a class says of a
    setting beside which values of another one it is not used.
    """
    kind, known = class_of(name), settings_of(name)
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
    return {field.name: field.default for field in dataclasses.fields(class_of(name))}


def described() -> str:
    """Every method with its paper, what it knows by itself and its settings, room by room, to read in a terminal."""
    lines, width = list[str](), max(map(len, names()))
    for room, title in TITLES.items():
        lines += ["", title] if lines else [title]
        for name in names(room):
            kind, settings = class_of(name), settings_of(name)
            told = [", ".join(f"{key}={value}" for key, value in settings.items())] if settings else []
            if room in UNIT_ROOMS:
                told = [f"allocation {kind.allocation}, compensation {kind.compensation}", *told]
            elif room != "rotations":
                told = [f"scope {' or '.join(kind.scopes)}", *told]
            lines += [f"  {name:<{width}}  {kind.paper}", f"  {'':<{width}}  {'; '.join(told)}"]
    return "\n".join(lines)


def _files(room: str) -> list[Path]:
    return sorted((Path(__file__).parent / room).glob("*.py"))
