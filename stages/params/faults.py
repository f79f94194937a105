"""Error messages for params.yaml in one line: which parameter, what was expected, what was given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError


def fault_at(place: str, message: str) -> PydanticCustomError:
    """An error for validators to raise: `message` about the setting at `place`, relative to the validated section."""
    return PydanticCustomError("misplaced", "{message}", {"place": place, "message": message})


def first_fault(error: ValidationError, values: Any) -> str:
    """One line about the first fault in `values`: its place, what is wrong, and how many more faults there are."""
    faults = error.errors()
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{_place(faults[0], values) or 'the file'}: {_message(faults[0])}{more}"


def _message(fault: ErrorDetails) -> str:
    """What was expected and what was given; in pydantic's words unless a validator of ours wrote the message."""
    text = re.sub(r"^(Value error|Assertion failed), ", "", fault["msg"])
    if fault["type"] in ("value_error", "misplaced"):
        return text
    if fault["type"] == "missing":
        return "this setting is required, got nothing: write it there"
    if fault["type"] == "union_tag_invalid":
        return f"expected one of {fault['ctx']['expected_tags']}, got {fault['ctx']['tag']!r}"
    if fault["type"] == "union_tag_not_found":
        return "this setting is required, got nothing: it tells which others there are"
    quotes = ": put it in quotes" if fault["type"] == "string_type" and _is_scalar(fault["input"]) else ""
    return f"{text[0].lower()}{text[1:]}, got {_shown(fault['input'])}{quotes}"


def _is_scalar(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."


def _place(fault: ErrorDetails, values: Any) -> str:
    """The parameter's dotted name in params.yaml, without the names of union members that pydantic puts between."""
    place, missing, member = "", fault["loc"][-1:] if fault["type"] == "missing" else (), None
    for part in fault["loc"]:
        if isinstance(values, dict) and part == values.get("source") and values is not member:
            member = values  # of a union: its name may be that of a setting too (images)
        elif isinstance(part, int):
            place += f"[{part}]"
            values = values[part] if isinstance(values, Sequence) and part < len(values) else None
        elif not isinstance(values, dict) or part in values or part in missing:
            place += f".{part}"
            values = values.get(part) if isinstance(values, dict) else None
    context = fault.get("ctx", {})
    inner = context.get("place") or context.get("discriminator", "").strip("'")
    return f"{place}.{inner}".replace(".[", "[").strip(".")
