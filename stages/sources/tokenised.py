"""A chosen text as token ids of the model's tokenizer, filed with its facts and its labelled documents."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.manifest import trusts_code
from stages.artifacts.tokens import write_tokens
from stages.errors import ArtifactError, SourceError, reason_of
from stages.models.importing.tokens import tokenise
from stages.models.loading.load import load_tokenizer
from stages.params import Params
from stages.sources.texts import ChosenText

log = logging.getLogger("secateur")


def write_texts(
    folder: Path, texts: Mapping[str, ChosenText], model_folder: Path, model: Mapping[str, Any], params: Params
) -> dict[str, dict[str, Any]]:
    """Write the token ids of both texts (`write_text`); gives the facts of each. model: its manifest."""
    vocabulary = int(model["vocabulary"])
    tokenizer = open_tokenizer(model_folder, trusts_code(model), vocabulary)
    return {name: write_text(folder, name, text, tokenizer, vocabulary, params) for name, text in texts.items()}


def open_tokenizer(folder: Path, trust_remote_code: bool, vocabulary: int) -> Any:
    """The tokenizer of a fetched model; warns where it has more tokens than the model has embeddings (`vocabulary`).

    Raises SourceError if there is none that transformers can load.
    """
    try:
        tokenizer = load_tokenizer(folder, trust_remote_code)
    except ArtifactError as error:
        reason = reason_of(error.__cause__ or error)
        raise SourceError(
            f"fetch.model: its source holds no tokenizer that transformers can load ({reason}): put the tokenizer's "
            "files beside config.json"
        ) from error
    if len(tokenizer) > vocabulary:
        log.warning(
            "the tokenizer has %d tokens, the model embeddings for %d: a text that holds others is refused",
            len(tokenizer),
            vocabulary,
        )
    return tokenizer


def write_text(
    folder: Path, name: str, text: ChosenText, tokenizer: Any, vocabulary: int, params: Params
) -> dict[str, Any]:
    """Write <name>.parquet, the token ids, and <name>_documents.parquet where documents have labels; gives the facts.

    name: calibration or evaluation. Raises SourceError for fewer tokens than later stages will need, or for one that
    the model has no embedding of.
    """
    ids = tokenise(tokenizer, text.text, vocabulary)
    _check_enough(name, len(ids), params)
    facts = {**text.facts, "tokens": len(ids)}
    write_tokens(folder, name, ids, facts)
    if any(document.label is not None for document in text.documents):
        columns: dict[str, Any] = {
            "text": [document.text for document in text.documents],
            "label": [document.label for document in text.documents],
        }
        pq.write_table(pa.table(columns), folder / f"{name}_documents.parquet")
    log.info("%s: %d tokens, %d documents of %s", name, len(ids), len(text.documents), text.facts["name"])
    return facts


def _check_enough(name: str, tokens: int, params: Params) -> None:
    """Raise SourceError where a text has fewer tokens than extract or evaluate will need of it."""
    calibration, window = params.calibration, params.evaluate.perplexity.window
    needed, setting = window, "evaluate.perplexity.window"
    if name == "calibration":
        needed, setting = calibration.sequences * calibration.length + 1, "calibration.sequences of calibration.length"
    if tokens < needed:
        raise SourceError(
            f"fetch.{name}: the text has {tokens} tokens, expected at least {needed} ({setting}): use more text, or "
            "lower that setting"
        )
