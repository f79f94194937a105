"""Model and texts, wherever they come from -> data/model, data/texts.

data/model is a Hugging Face folder of safetensors. data/texts holds the token ids of two texts that do
not overlap, calibration.parquet and evaluation.parquet (`token`, a row a token), and the documents
(`text`, `label`) where the source labels them. The only stage that uses the network.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.manifest import write_manifest
from stages.artifacts.places import MODEL, TEXTS
from stages.errors import ArtifactError, SourceError
from stages.models.importing.tokens import tokenise
from stages.models.loading.load import load_tokenizer
from stages.params import Params
from stages.params.positions import check_positions
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.sources.model import write_model
from stages.sources.overlap import check_disjoint
from stages.sources.texts import ChosenText, choose

SECTIONS = ("fetch",)
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write both folders: texts are read first, since most mistakes are in their settings."""
    settings, facts = run.params.fetch, dict[str, dict[str, Any]]()
    texts = {name: choose(getattr(settings, name), f"fetch.{name}") for name in ("calibration", "evaluation")}
    overlap = check_disjoint(texts["calibration"], texts["evaluation"], settings.max_overlap)
    with run.output(MODEL) as model_folder, run.output(TEXTS) as texts_folder:
        model = write_model(settings.model, model_folder)
        check_positions(run.params, model["positions"])
        log.info("%s: %.1f million parameters, %s", model["architecture"], model["parameters"] / 1e6, model["dtype"])
        tokenizer = _tokenizer(model_folder, getattr(settings.model, "trust_remote_code", False))
        if len(tokenizer) > model["vocabulary"]:
            log.warning(
                "the tokenizer has %d tokens, the model embeddings for %d: a text that holds others is refused",
                len(tokenizer),
                model["vocabulary"],
            )
        for name, text in texts.items():
            ids = tokenise(tokenizer, text.text, model["vocabulary"])
            _check_enough(name, len(ids), run.params)
            facts[name] = {**text.facts, "tokens": len(ids)}
            _write_text(texts_folder, name, text, ids, facts[name])
            run.figures[f"{name}_tokens"] = len(ids)
            log.info("%s: %d tokens, %d documents of %s", name, len(ids), len(text.documents), text.facts["name"])
        facts["evaluation"]["overlap"] = round(overlap, 6)
        write_manifest(texts_folder, facts)
        write_manifest(model_folder, model)


def _check_enough(name: str, tokens: int, params: Params) -> None:
    """Raise SourceError where a text has fewer tokens than extract or evaluate will ask it for."""
    calibration, window = params.calibration, params.evaluate.perplexity.window
    needed, setting = window, "evaluate.perplexity.window"
    if name == "calibration":
        needed, setting = calibration.sequences * calibration.length + 1, "calibration.sequences of calibration.length"
    if tokens < needed:
        raise SourceError(
            f"fetch.{name}: the text has {tokens} tokens, expected at least {needed} ({setting}): use more text, or "
            "lower that setting"
        )


def _tokenizer(folder: Path, trusted: bool) -> Any:
    try:
        return load_tokenizer(folder, trusted)
    except ArtifactError as error:
        raise SourceError(
            f"fetch.model: its source holds no tokenizer that transformers can load ({error.__cause__}): put the "
            "tokenizer's files beside config.json"
        ) from error


def _write_text(folder: Path, name: str, text: ChosenText, ids: np.ndarray, facts: dict[str, Any]) -> None:
    """Token ids, with the facts in the file's own metadata; documents where they have labels."""
    schema = pa.schema([("token", pa.int32())], metadata={"facts": json.dumps(facts, sort_keys=True)})
    pq.write_table(pa.table([pa.array(ids)], schema=schema), folder / f"{name}.parquet")
    if any(document.label is not None for document in text.documents):
        columns: dict[str, Any] = {
            "text": [document.text for document in text.documents],
            "label": [document.label for document in text.documents],
        }
        pq.write_table(pa.table(columns), folder / f"{name}_documents.parquet")


if __name__ == "__main__":
    parser_of("fetch", __doc__ or "").parse_args()
    sys.exit(run_stage("fetch", main, SECTIONS))
