"""The documents of a text source, in the source's own order."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stages.errors import ParameterError, SourceError
from stages.params.fetching import HubText, LocalText, Text, WheelText
from stages.places import from_project
from stages.sources import hub
from stages.sources.wheels import matching, wheel_of

SUFFIXES = ".txt", ".jsonl", ".parquet"


@dataclass(frozen=True)
class Document:
    """A text, and its label where the source has labels."""

    text: str
    label: str | None = None


def documents_of(source: Text, place: str) -> Iterator[Document]:
    """All documents; a .txt file is one, elsewhere a row is one.

    place: the parameter that asks for them, for messages. Raises SourceError or ParameterError.
    """
    if isinstance(source, HubText):
        return (_document(text, None, place, row) for row, text in enumerate(hub.rows(source, place)))
    return _in_wheel(source) if isinstance(source, WheelText) else _local(source, place)


def _in_wheel(source: WheelText) -> Iterator[Document]:
    """Members in the order of their names; the folder of each is its label."""
    wheel = wheel_of(source.package, source.sha256)
    names = matching(wheel, source.member)
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            yield Document(_decoded(archive.read(name)), PurePosixPath(name).parent.name or None)


def _local(source: LocalText, place: str) -> Iterator[Document]:
    path = from_project(source.path)
    if path.is_dir():
        return _in_folder(path, place)
    if not path.is_file():
        raise SourceError(
            f"{place}.path: {path} is not there: expected a {', '.join(SUFFIXES)} file or a folder of .txt"
        )
    if path.suffix == ".txt":
        return iter([Document(_decoded(path.read_bytes()))])
    if path.suffix not in SUFFIXES:
        raise ParameterError(f"{place}.path: expected a {', '.join(SUFFIXES)} file, or a folder of .txt, got {path}")
    rows = _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path, source, place)
    return (_from_row(row, number, source, place) for number, row in enumerate(rows))


def _in_folder(folder: Path, place: str) -> Iterator[Document]:
    """.txt files in the order of their names; the folder inside `folder` that holds a file is its label."""
    paths = sorted(folder.rglob("*.txt"))
    if not paths:
        raise SourceError(f"{place}.path: {folder} holds no .txt file")
    for path in paths:
        yield Document(_decoded(path.read_bytes()), None if path.parent == folder else path.parent.name)


def _jsonl_rows(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise SourceError(f"{path}: line {number} is not JSON ({error})") from None


def _parquet_rows(path: Path, source: LocalText, place: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{path} is no readable Parquet file: {error}") from None
    with file:
        wanted = [name for name in (source.column, source.label_column) if name is not None]
        missing = [name for name in wanted if name not in file.schema_arrow.names]
        if missing:
            raise ParameterError(
                f"{place}: {path} has no column {missing[0]}: it has {', '.join(file.schema_arrow.names)}"
            )
        for batch in file.iter_batches(columns=wanted):
            yield from batch.to_pylist()


def _from_row(row: Any, number: int, source: LocalText, place: str) -> Document:
    for column in (source.column, source.label_column):
        if column is not None and (not isinstance(row, dict) or column not in row):
            known = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise ParameterError(f"{place}: row {number} of {source.path} has no {column}: it has {known}")
    label = None if source.label_column is None else row[source.label_column]
    return _document(row[source.column], label, place, number)


def _document(text: Any, label: Any, place: str, row: int) -> Document:
    if not isinstance(text, str):
        raise SourceError(f"{place}: row {row} holds {type(text).__name__}, expected text: choose another column")
    return Document(text, None if label is None else str(label))


def _decoded(data: bytes) -> str:
    """UTF-8 (a byte order mark is dropped); where it is not that, Latin-1, which every file is."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")
