"""Model and texts, wherever they come from -> data/model, data/texts.

data/model is a Hugging Face folder of safetensors. data/texts holds the token ids of two texts that do
not overlap, calibration.parquet and evaluation.parquet (`token`, a row a token), and the documents
(`text`, `label`) where the source labels them. The only stage that uses the network.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from stages.artifacts.manifest import write_manifest
from stages.artifacts.places import MODEL, TEXTS
from stages.params.positions import check_positions
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.sources.model import write_model
from stages.sources.overlap import check_disjoint
from stages.sources.texts import choose_text
from stages.sources.tokenised import open_tokenizer, write_text

SECTIONS = ("fetch",)
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write both folders: texts are read first, since most mistakes are in their settings."""
    settings, facts = run.params.fetch, dict[str, dict[str, Any]]()
    texts = {name: choose_text(getattr(settings, name), f"fetch.{name}") for name in ("calibration", "evaluation")}
    overlap = check_disjoint(texts["calibration"], texts["evaluation"], settings.max_overlap)
    with run.output(MODEL) as model_folder, run.output(TEXTS) as texts_folder:
        model = write_model(settings.model, model_folder)
        check_positions(run.params, model["positions"])
        log.info("%s: %.1f million parameters, %s", model["architecture"], model["parameters"] / 1e6, model["dtype"])
        vocabulary, trust = model["vocabulary"], getattr(settings.model, "trust_remote_code", False)
        tokenizer = open_tokenizer(model_folder, trust, vocabulary)
        for name, text in texts.items():
            facts[name] = write_text(texts_folder, name, text, tokenizer, vocabulary, run.params)
            run.figures[f"{name}_tokens"] = facts[name]["tokens"]
        facts["evaluation"]["overlap"] = round(overlap, 6)
        write_manifest(texts_folder, facts)
        write_manifest(model_folder, model)


if __name__ == "__main__":
    parser_of("fetch", __doc__ or "").parse_args()
    sys.exit(run_stage("fetch", main, SECTIONS))
