"""Makes one text of a source's documents: selects, shuffles, replaces and joins them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stages.errors import ParameterError
from stages.params.fetching import Fetch, HubText, Text, TextOptions, WheelText
from stages.runtime.progress import progress
from stages.sources.documents import Document, read_documents
from stages.sources.reading import explain_unreadable
from stages.sources.repeats import mark_repeats


@dataclass(frozen=True)
class ChosenText:
    """A joined text, its documents as they stand in it, and the facts for its manifest."""

    documents: list[Document]
    text: str
    facts: dict[str, Any]


def choose_texts(settings: Fetch) -> dict[str, ChosenText]:
    """Both texts, `calibration` and `evaluation`; none where the sources are of images. See `choose_text`."""
    sources = {"calibration": settings.calibration, "evaluation": settings.evaluation}
    return {name: choose_text(source, f"fetch.{name}") for name, source in sources.items() if isinstance(source, Text)}


def choose_text(source: Text, place: str) -> ChosenText:
    """Read a source and make its text; raises ParameterError, SourceError.

    place: the parameter that names the source, for messages.
    """
    with explain_unreadable(place):
        bar = progress(read_documents(source, place), desc=place, unit=" documents")
        taken, dropped = select_documents(bar, source, place)
    documents = [Document(_replaced(document.text, source.replace), document.label) for document in taken]
    text = source.join.join(document.text for document in documents)
    if not text.strip():
        raise ParameterError(f"{place}: the text is empty: expected at least one document with text in it")
    try:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise ParameterError(f"{place}: the text holds what is no Unicode character ({error.reason})") from None
    facts = {
        "name": text_name(source),
        "source": source.model_dump(mode="json"),
        "sha256": sha256,
        "documents": len(documents),
        "repeats_dropped": dropped,
        "characters": len(text),
        "join": source.join,
        "replace": source.replace,
    }
    return ChosenText(documents, text, facts)


def select_documents(documents: Iterable[Document], options: TextOptions, place: str) -> tuple[list[Document], int]:
    """The documents that `options` select, and how many repeats (see repeats.py) were dropped before.

    A source taken whole and in its own order keeps its repeats: rows may be the lines of one text, blank ones
    among them, as WikiText's are. Otherwise they go before shuffling, lest one stand in two sets.
    Raises ParameterError if there are not as many.
    """
    if options.shuffle is None and options.documents is None:
        return list(documents), 0
    start, stop = (0, None) if options.documents is None else (options.documents.first, options.documents.last + 1)
    taken, dropped = list[Document](), 0
    for document, repeated in mark_repeats(documents):
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


def text_name(source: Text) -> str:
    """Name of the text in reports and protocols."""
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
