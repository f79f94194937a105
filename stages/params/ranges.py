"""Numbers and ranges of numbers in params.yaml: `[0, 2, -1]`, `"0-2"`, `{from: 0, to: 2}`; both ends are included."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

FORM = re.compile(r"\s*(-?\d+)\s*-\s*(-?\d+)\s*")


@dataclass(frozen=True)
class Range:
    """The numbers from `first` to `last`, both included; negative ones count from the end."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def range_of(value: Any) -> Range:
    """The range that a string such as "0-2", or a mapping with `from` and `to`, stands for; raises ValueError."""
    match value:
        case Range():
            return value
        case str() if (ends := FORM.fullmatch(value)) is not None:
            found = Range(int(ends[1]), int(ends[2]))
        case {"from": int(first), "to": int(last), **rest} if not rest and not {type(first), type(last)} - {int}:
            found = Range(first, last)
        case _:
            raise ValueError(f'expected a range such as "0-2" or {{from: 0, to: 2}}, both ends included, got {value!r}')
    if found.first > found.last and (found.first < 0) == (found.last < 0):
        raise ValueError(f"the range {found} holds nothing: write its smaller end first")
    return found


def _number_or_range(value: Any) -> int | Range:
    return value if type(value) is int else range_of(value)


def _listed(value: Any) -> Any:
    """A single number or range is a list of one."""
    return value if isinstance(value, list | tuple) else [value]


OneRange = Annotated[Range, PlainValidator(range_of), PlainSerializer(str)]
NumberOrRange = Annotated[
    int | Range, PlainValidator(_number_or_range), PlainSerializer(lambda one: one if type(one) is int else str(one))
]
Numbers = Annotated[tuple[NumberOrRange, ...], BeforeValidator(_listed), Field(min_length=1)]
"""A list of numbers and ranges."""


def resolve_numbers(numbers: Sequence[int | Range], count: int) -> list[int]:
    """The numbers meant of 0 to `count` - 1, in order; raises ValueError for one that is not among them."""
    found = set[int]()
    for one in numbers:
        ends = (one.first, one.last) if isinstance(one, Range) else (one, one)
        first, last = (end + count if end < 0 else end for end in ends)
        if not 0 <= first <= last < count:
            raise ValueError(f"expected some of 0 to {count - 1} (-1 is the last), got {one}")
        found.update(range(first, last + 1))
    return sorted(found)


def as_ranges(numbers: Iterable[int]) -> str:
    """Numbers in order, runs of them as ranges: "0-2, 5"."""
    runs: list[list[int]] = []
    for one in sorted(numbers):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
