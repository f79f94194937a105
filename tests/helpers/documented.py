"""What README.md, CONTRIBUTING.md and docs/ tell a reader to type, run or write into params.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.committed import ROOT

PROGRAMS = {"cd", "dvc", "export", "make", "pip", "pre-commit", "prefect", "python", "secateur", "source"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = {"", "bash", "console", "sh"}
COMMENT = re.compile(r"\s+#\s.*")
ASSIGNMENT = re.compile(r"^\w+=\S*$")


def pages() -> list[Path]:
    """README.md, CONTRIBUTING.md and every page of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> dict[str, str]:
    """Every command of fenced blocks, tables and inline code, and a page that has it."""
    found = dict[str, str]()
    for page in pages():
        for line in _code(page.read_text(encoding="utf-8")):
            command = COMMENT.sub("", line).strip()
            if _is_command(command):
                found.setdefault(command, page.name)
    return found


def blocks(language: str) -> list[tuple[str, str]]:
    """Fenced blocks in a language, each with the page that has it; none twice."""
    found = dict[str, str]()
    for page in pages():
        for tongue, block in FENCE.findall(page.read_text(encoding="utf-8")):
            if tongue == language:
                found.setdefault(block, page.name)
    return [(page, block) for block, page in found.items()]


def _code(text: str) -> Iterator[str]:
    for language, block in FENCE.findall(text):
        if language in SHELL:
            yield from block.splitlines()
            yield from re.findall(r"`([^`\n]+)`", block)
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def _is_command(line: str) -> bool:
    words = line.split()
    while words and ASSIGNMENT.match(words[0]):
        del words[0]
    return len(words) > 1 and words[0] in PROGRAMS
