"""Griffe extension: docstrings as they are written here, made into Markdown before they are rendered.

Lines `name: what it is` become a list of fields or arguments, and a list may follow its sentence without an empty line.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"^(\w+(?:, \w+)*):\s+(\S.*)$")

LIST_IN_PARAGRAPH = re.compile(r"^((?!- ).*)\n(- )", re.MULTILINE)


class Fields(griffe.Extension):
    """Rewrites docstrings as they are collected, before they are rendered as Markdown."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """List the fields that a class's docstring tells of."""
        self._rewrite(cls, set(cls.members), "Fields")

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """List the arguments that a function's docstring tells of."""
        self._rewrite(func, {parameter.name for parameter in func.parameters}, "Arguments")

    @staticmethod
    def _rewrite(thing: griffe.Object, names: set[str], title: str) -> None:
        if thing.docstring is not None:
            paragraphs = thing.docstring.value.split("\n\n")
            thing.docstring.value = "\n\n".join(as_list(paragraph, names, title) for paragraph in paragraphs)


def as_list(paragraph: str, names: set[str], title: str) -> str:
    """The paragraph as a Markdown list with a title, if its first line tells of some of `names`."""
    first = FIELD.match(paragraph.split("\n", 1)[0])
    if first is None or not set(first[1].split(", ")) <= names:
        return LIST_IN_PARAGRAPH.sub(r"\1\n\n\2", paragraph, count=1)
    items = [f"**{title}**", ""]
    for line in paragraph.splitlines():
        if (field := FIELD.match(line)) and set(field[1].split(", ")) <= names:
            items.append(f"- `{field[1]}`: {field[2]}")
        else:
            items.append(f"    {line.strip()}")
    return "\n".join(items)
