"""Griffe extension: docstrings as they are written here, made into Markdown before they are rendered.

Lines `name: what it is` become a list of fields or arguments, a list may follow its sentence without an empty line, and
what Markdown would take for emphasis or a tag (w_h, <name>) is plain text. Indented paragraphs stay code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"^(\w+(?:, \w+)*):\s+(\S.*)$")
LIST_IN_PARAGRAPH = re.compile(r"^((?!- ).*)\n(- )", re.MULTILINE)
SPECIAL = re.compile(r"(`[^`]*`)|([*_])|<(?=[a-z])")
"""Code in a line, or a character that Markdown would not print."""


class Docstrings(griffe.Extension):
    """Rewrites every docstring once its module is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Make the docstring of a module, class, function or attribute Markdown."""
        if obj.docstring is not None:
            names = set(obj.members)
            if isinstance(obj, griffe.Function):
                names = {parameter.name for parameter in obj.parameters}
            title = "Arguments" if isinstance(obj, griffe.Function) else "Fields"
            obj.docstring.value = as_markdown(obj.docstring.value, names, title)


def as_markdown(text: str, names: set[str], title: str) -> str:
    """A docstring as Markdown; paragraphs that begin with one of `names` become a list with a title."""
    return "\n\n".join(_paragraph(paragraph, names, title) for paragraph in text.split("\n\n"))


def _paragraph(text: str, names: set[str], title: str) -> str:
    if all(line.startswith("    ") for line in text.splitlines()):
        return text
    if not _field(text.split("\n", 1)[0], names):
        return LIST_IN_PARAGRAPH.sub(r"\1\n\n\2", _plain(text), count=1)
    items = [f"**{title}**", ""]
    for line in text.splitlines():
        field = _field(line, names)
        items.append(f"- `{field[1]}`: {_plain(field[2])}" if field else f"    {_plain(line.strip())}")
    return "\n".join(items)


def _field(line: str, names: set[str]) -> re.Match[str] | None:
    """A line that begins with names of fields or arguments and a colon."""
    field = FIELD.match(line)
    return field if field and set(field[1].split(", ")) <= names else None


def _plain(text: str) -> str:
    """The text with what Markdown would take for markup escaped, outside of code."""
    return SPECIAL.sub(lambda match: match[1] or (f"\\{match[2]}" if match[2] else "&lt;"), text)
