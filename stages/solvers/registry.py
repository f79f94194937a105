"""Find methods by their file name and check their settings."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stages import solvers
from stages.errors import ParameterError
from stages.solvers.contract import LinearSolver


def class_of(name: str) -> type[LinearSolver]:
    """The dataclass that stages/solvers/<name>.py defines; raises ParameterError if there is no such file."""
    if name not in solvers.names():
        raise ParameterError(f"unknown method {name!r}: expected one of {', '.join(solvers.names())}")
    module = importlib.import_module(f"stages.solvers.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "scopes")
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__}: expected one class with `paper`, `refits`, `scopes`, got {len(found)}")
    return found[0]


def load(name: str, settings: Mapping[str, Any] | None = None) -> LinearSolver:
    """The method with these settings; raises ParameterError that names the setting which is wrong."""
    kind, known = class_of(name), settings_of(name)
    for setting in settings or {}:
        if setting not in known:
            expected = ", ".join(known) or "none"
            raise ParameterError(f"methods.{name}: unknown setting {setting!r}: expected one of: {expected}")
    try:
        return TypeAdapter(kind).validate_python(dict(settings or {}))
    except ParameterError as error:
        raise ParameterError(f"methods.{name}.{error}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ParameterError(f"methods.{name}.{place}: {fault['msg']}, got {fault['input']!r}") from None


def settings_of(name: str) -> dict[str, Any]:
    """Names and defaults of a method's settings."""
    return {field.name: field.default for field in dataclasses.fields(class_of(name))}  # type: ignore[arg-type]
