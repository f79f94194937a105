"""Parses block numbers and ranges of params.yaml: `[0, 2, -1]`, `"0-2"`, `{from: 0, to: 2}`, both ends included."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

FORM = re.compile(r"\s*(-?\d+)\s*-\s*(-?\d+)\s*")
"""A range as a string: "0-2", "-3--1"."""


@dataclass(frozen=True)
class Range:
    """The numbers from `first` to `last`, both included; negative ones count from the end."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def range_of(value: Any) -> Range:
    """Parse a range: a string such as "0-2", or a mapping with `from` and `to`; raises ValueError."""
    match value:
        case Range():
            return value
        case str() if (ends := FORM.fullmatch(value)) is not None:
            parsed = Range(int(ends[1]), int(ends[2]))
        case {"from": int(first), "to": int(last), **rest} if not rest and not {type(first), type(last)} - {int}:
            parsed = Range(first, last)
        case _:
            raise ValueError(f'expected a range such as "0-2" or {{from: 0, to: 2}}, both ends included, got {value!r}')
    # Ends of different signs, such as 2 to -1, can only be compared once the count is known (resolve_numbers).
    if parsed.first > parsed.last and (parsed.first < 0) == (parsed.last < 0):
        raise ValueError(f"the range {parsed} holds nothing: write its smaller end first")
    return parsed


def _number_or_range(value: Any) -> int | Range:
    return value if type(value) is int else range_of(value)


def _serialised(value: int | Range) -> int | str:
    return str(value) if isinstance(value, Range) else value


def _listed(value: Any) -> Any:
    """Wrap a single number or range in a list."""
    return value if isinstance(value, list | tuple) else [value]


OneRange = Annotated[Range, PlainValidator(range_of), PlainSerializer(str)]
"""A single range."""
NumberOrRange = Annotated[int | Range, PlainValidator(_number_or_range), PlainSerializer(_serialised)]
"""A number, or a range of numbers."""
Numbers = Annotated[tuple[NumberOrRange, ...], BeforeValidator(_listed), Field(min_length=1)]
"""A list of numbers and ranges."""


def resolve_numbers(numbers: Sequence[int | Range], count: int) -> list[int]:
    """The selected numbers of 0 to `count` - 1, sorted; negative ones count from the end. Raises ValueError."""
    selected = set[int]()
    for entry in numbers:
        ends = (entry.first, entry.last) if isinstance(entry, Range) else (entry, entry)
        first, last = (end + count if end < 0 else end for end in ends)
        if not 0 <= first <= last < count:
            raise ValueError(f"expected some of 0 to {count - 1} (-1 is the last), got {entry}")
        selected.update(range(first, last + 1))
    return sorted(selected)


def as_ranges(numbers: Iterable[int]) -> str:
    """Format numbers in order, runs of them as ranges: "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
