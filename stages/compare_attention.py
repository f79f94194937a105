"""How far the attention matrices of the pruned model are from the dense model's, on calibration and held-out text.

Reads  data/model, data/pruned, data/texts.
Writes data/attention (errors.parquet, a row a text, inputs, block and head; manifest.json) and metrics/attention.json.
Takes seconds, so nothing is kept for a run that was killed: it begins again. A model whose attention cannot be
reached (state: unreachable), or that lost heads (state: off), is told in the outputs and fails nothing.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from stages.artifacts.atomic import write_json
from stages.artifacts.attention import ATTENTION_ERRORS
from stages.artifacts.manifest import identity_of, read_json, sha256_of, write_manifest
from stages.artifacts.places import ATTENTION, METRICS, MODEL, PRUNING_MANIFEST, TEXTS
from stages.artifacts.table import Row
from stages.errors import ArchitectureError
from stages.measuring.attention.figures import attention_figures, error_rows
from stages.measuring.attention.texts import texts_to_compare
from stages.models.loading.compute import compute_facts
from stages.params.evaluating import Attention
from stages.params.positions import check_positions
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model, open_pruned

SECTIONS = ("compute", "evaluate.attention")
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Measure, or tell why not; publish the table, its manifest and the figures."""
    settings, chunk, facts = run.params.evaluate.attention, run.params.compute.chunk, read_json(PRUNING_MANIFEST)
    rows = list[Row]()
    reason = why_not(facts.get("layout", {}), settings)
    figures: dict[str, Any] = {"state": "off", "reason": reason}
    made_from = {"texts": identity_of(TEXTS), "model": identity_of(MODEL), "pruned": sha256_of(PRUNING_MANIFEST)}
    if reason is None:
        dense, _ = open_model(run.params.compute)
        pruned = open_pruned(dense, facts)
        check_positions(run.params, dense.positions, ("evaluate.attention",))
        texts = texts_to_compare(settings, facts["calibration"])
        shape = dict(zip(("sequences", "length"), texts["held_out"].shape, strict=True))
        made_from |= compute_facts(dense.device, dense.dtype, chunk)
        try:
            rows = error_rows(dense, pruned, texts, chunk)
            figures = {"state": "measured", **shape, **attention_figures(rows)}
        except ArchitectureError as error:
            log.warning("not measured: %s", error)
            figures = {"state": "unreachable", "reason": str(error)}
    with run.output(ATTENTION) as folder:
        ATTENTION_ERRORS.write(folder, rows)
        write_manifest(folder, {**made_from, "attention": settings.model_dump(), "state": figures["state"]})
    write_json(METRICS / "attention.json", figures)


def why_not(layout: dict[str, Any], settings: Attention) -> str | None:
    """Why a checkpoint of this layout is not measured; None if it is."""
    if layout.get("heads_removed", False):
        return "heads were removed: attention matrices have no counterpart"
    if layout.get("name") == "sliced":
        return "hidden states were sliced: its blocks cannot be given the dense model's"
    return None if settings.sequences else "evaluate.attention.sequences is 0"


if __name__ == "__main__":
    parser_of("compare_attention", __doc__).parse_args()
    sys.exit(run_stage("compare_attention", main, SECTIONS))
