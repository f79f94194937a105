"""Detects documents that mostly repeat earlier ones: agency copy, updated articles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stages.sources.documents import Document

LONG = 80
"""Characters of a line, stripped, that two documents do not share by chance."""


def mark_repeats(documents: Iterable[Document]) -> Iterator[tuple[Document, bool]]:
    """Each document, and whether it repeats earlier ones that did not.

    It does if its text is the same, or if more than half of its long lines, in characters, were there before.
    """
    texts, known = set[int](), set[int]()
    for document in documents:
        long_lines = {hash(line): len(line) for line in stripped_lines(document.text) if len(line) >= LONG}
        repeated = sum(size for line, size in long_lines.items() if line in known)
        if hash(document.text) in texts or 2 * repeated > sum(long_lines.values()):
            yield document, True
        else:
            texts.add(hash(document.text))
            known.update(long_lines)
            yield document, False


def stripped_lines(text: str) -> Iterator[str]:
    """The lines of a text, stripped."""
    return (line.strip() for line in text.splitlines())
