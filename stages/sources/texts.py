"""From the documents of a source to one text: which are taken, in which order, how they are joined."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stages.errors import ParameterError
from stages.params.fetching import HubText, Text, TextOptions, WheelText
from stages.runtime.progress import progress
from stages.sources.documents import Document, documents_of
from stages.sources.reading import reading
from stages.sources.repeats import marked


@dataclass(frozen=True)
class ChosenText:
    """Documents as they stand in the joined text, the text, and what the manifest tells of it."""

    documents: list[Document]
    text: str
    facts: dict[str, Any]


def choose(source: Text, place: str) -> ChosenText:
    """Read a source and make its text; raises ParameterError, SourceError.

    place: the parameter that asks for it, for messages.
    """
    with reading(place):
        bar = progress(documents_of(source, place), desc=place, unit=" documents")
        taken, dropped = select(bar, source, place)
    documents = [Document(_replaced(one.text, source.replace), one.label) for one in taken]
    text = source.join.join(one.text for one in documents)
    if not text.strip():
        raise ParameterError(f"{place}: the text is empty: expected at least one document with text in it")
    try:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise ParameterError(f"{place}: the text holds what is no Unicode character ({error.reason})") from None
    facts = {
        "name": name_of(source),
        "source": source.model_dump(mode="json"),
        "sha256": sha256,
        "documents": len(documents),
        "repeats_dropped": dropped,
        "characters": len(text),
        "join": source.join,
        "replace": source.replace,
    }
    return ChosenText(documents, text, facts)


def select(documents: Iterable[Document], options: TextOptions, place: str) -> tuple[list[Document], int]:
    """The documents that `options` ask for, and how many repeats (see repeats.py) were dropped before.

    A source taken whole and in its own order keeps its repeats: rows may be the lines of one text, blank ones
    among them, as WikiText's are. Otherwise they go before shuffling, lest one stand in two sets.
    Raises ParameterError if there are not as many.
    """
    if options.shuffle is None and options.documents is None:
        return list(documents), 0
    start, stop = (0, None) if options.documents is None else (options.documents.first, options.documents.last + 1)
    taken, dropped = list[Document](), 0
    for document, repeated in marked(documents):
        dropped += repeated
        if not repeated:
            taken.append(document)
        if options.shuffle is None and len(taken) == stop:
            break
    if stop is not None and stop > len(taken):
        raise ParameterError(
            f"{place}.documents: expected a last one of at most {len(taken) - 1}, since {len(taken)} documents do not "
            f"repeat others, got {options.documents}"
        )
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(taken)
    return taken[start:stop], dropped


def name_of(source: Text) -> str:
    """What a report calls the text."""
    if isinstance(source, HubText):
        name = " ".join(part for part in (source.id, source.config, source.data_files, source.split) if part)
    else:
        name = source.package if isinstance(source, WheelText) else source.path.name
    if source.documents is None:
        return name
    return f"{name} documents {source.documents}"


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text
