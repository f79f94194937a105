"""Downloads models and datasets from the Hugging Face hub; failures say what to check and what else to use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stages.errors import ParameterError, SourceError, UnreachableError, reason_of
from stages.params.fetching import HubModel, HubText

FORMS = {
    "c4": "id: allenai/c4, no config, data_files: en/c4-train.00000-of-01024.json.gz (validation: "
    "en/c4-validation.00000-of-00008.json.gz)",
    "ptb": "id: ptb-text-only/ptb_text_only, revision: refs/convert/parquet, column: sentence",
    "wikitext": "id: Salesforce/wikitext, config: wikitext-2-raw-v1",
}
"""Settings known to work (datasets has no script loaders any more), by a part of the dataset's name."""
NETWORK = {"TransportError", "LocalEntryNotFoundError", "ConnectTimeout"}
"""Class names of the clients' errors that mean that nothing answered."""


def download_snapshot(source: HubModel, patterns: list[str], ignored: list[str]) -> Path:
    """Folder of the files of a model at a revision; its name is the commit. Raises SourceError."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(source.id, revision=source.revision, allow_patterns=patterns, ignore_patterns=ignored)
        )
    except Exception as error:  # the client's network errors have no common class, and change with its releases
        raise _kind(error)(
            f"fetch.model: {source.id} at {source.revision} did not come from the hub ({reason_of(error)}): check id, "
            "revision, access and network, or use a folder on this machine: source: local, path: <folder>"
        ) from error


def dataset_rows(source: HubText, place: str) -> Iterator[str]:
    """The text column of a dataset, row by row.

    place: the parameter that names it, for messages. Raises SourceError, or ParameterError for a missing column.
    """
    if source.id.endswith("/c4") and source.data_files is None:
        raise ParameterError(f"{place}.data_files: {source.id} has hundreds of GB: name a file ({FORMS['c4']})")
    # Imported here: it takes a second, and other sources need not wait for it.
    from datasets import load_dataset

    files = None if source.data_files is None else {source.split: source.data_files}
    try:
        dataset = load_dataset(source.id, source.config, data_files=files, split=source.split, revision=source.revision)
    except Exception as error:  # see download_snapshot
        known = [form for name, form in FORMS.items() if name in source.id.lower()]
        advice = f"; known to work: {known[0]}" if known else ""
        raise _kind(error)(
            f"{place}: {source.id} did not come from the hub ({reason_of(error)}): check id, config, split and network"
            f"{advice}; or use a file on this machine: source: local, path: <.txt, .jsonl or .parquet>"
        ) from error
    if source.column not in dataset.column_names:
        raise ParameterError(f"{place}.column: expected one of {', '.join(dataset.column_names)}, got {source.column}")
    for row in dataset.select_columns([source.column]):
        yield row[source.column]


def _kind(error: BaseException | None) -> type[SourceError]:
    """UnreachableError, if the network is at the bottom of it."""
    while error is not None:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, ConnectionError | TimeoutError) or kinds & NETWORK:
            return UnreachableError
        error = error.__cause__ or error.__context__
    return SourceError
