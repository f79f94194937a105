"""Model and texts, wherever they come from -> data/model, data/texts.

data/model is a Hugging Face folder of safetensors. data/texts holds the token ids of two texts that do
not overlap, calibration.parquet and evaluation.parquet (`token`, a row a token), and the documents
(`text`, `label`) where the source labels them. The texts of an image model are images, each a class and its
codes, drawn by the model or encoded from files. The only stage that uses the network.
"""

from __future__ import annotations

import logging
import sys

from stages.artifacts.images import images_of
from stages.artifacts.manifest import write_manifest
from stages.artifacts.places import MODEL, TEXTS
from stages.params.kinds import check_kind
from stages.params.positions import check_positions
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.sources.model import write_model
from stages.sources.overlap import check_disjoint
from stages.sources.pictures import check_images
from stages.sources.sequences import check_sources, write_images
from stages.sources.texts import choose_texts
from stages.sources.tokenised import write_texts

SECTIONS = ("fetch",)
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Write both folders: texts are read first, since most mistakes are in their settings; images need the model."""
    settings = run.params.fetch
    check_images(settings)
    texts = choose_texts(settings)
    overlap = check_disjoint(texts["calibration"], texts["evaluation"], settings.max_overlap) if texts else 0.0
    with run.output(MODEL) as model_folder, run.output(TEXTS) as texts_folder:
        model = write_model(settings.model, model_folder)
        images = images_of(model)
        check_sources(settings, images)
        check_kind(run.params, images.sequence if images else None)
        check_positions(run.params, model["positions"])
        log.info("%s: %.1f million parameters, %s", model["architecture"], model["parameters"] / 1e6, model["dtype"])
        write_manifest(model_folder, model)
        if images is None:
            facts = write_texts(texts_folder, texts, model_folder, model, run.params)
            facts["evaluation"]["overlap"] = round(overlap, 6)
        else:
            facts = write_images(run, texts_folder, model_folder, images, model["vocabulary"])
        run.figures.update({f"{name}_tokens": text["tokens"] for name, text in facts.items()})
        write_manifest(texts_folder, facts)


if __name__ == "__main__":
    parser_of("fetch", __doc__ or "").parse_args()
    sys.exit(run_stage("fetch", main, SECTIONS))
