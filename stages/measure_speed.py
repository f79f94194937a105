"""How much smaller and faster the pruned model is than the dense one, both measured in this run, in turns.

Reads  data/model, data/pruned, data/texts (the prompt).
Writes data/speed (rounds.parquet, a row a round, model and phase; manifest.json) and metrics/speed.json.
Only structured pruning makes a dense checkpoint smaller, so for any other the outputs say `state: off` and why, unless
evaluate.speed.always is set. Image models draw whole images, too. Both models are in memory at once. Timings differ
from run to run: no stage but the report reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import (
    identity_of,
    read_json,
    read_manifest,
    sha256_of,
    verify_all,
    write_manifest,
)
from stages.artifacts.places import METRICS, MODEL, PRUNING_MANIFEST, SPEED, TEXTS
from stages.artifacts.speed import ROUNDS
from stages.artifacts.table import Row
from stages.measuring.speed.comparison import compare_speed
from stages.params.evaluating import Speed
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import check_pruned

SECTIONS = ("compute", "evaluate.speed", "evaluate.images.guidance_scale")


def main(run: StageRun) -> None:
    """Measure, or tell why not; publish the table, its manifest and the figures."""
    settings, facts = run.params.evaluate.speed, read_json(PRUNING_MANIFEST)
    rows, reason = list[Row](), why_not(settings, facts)
    figures: dict[str, Any] = {"state": "off", "reason": reason}
    if reason is None:
        source = read_manifest(MODEL)
        check_pruned(facts)
        verify_all(MODEL, source)
        measured, rows = compare_speed(run.params, source)
        asked = settings.model_dump(exclude={"always"})
        figures = {"state": "measured", "layout": layout_name(facts), **asked, **measured}
    made_from = {"texts": identity_of(TEXTS), "model": identity_of(MODEL), "pruned": sha256_of(PRUNING_MANIFEST)}
    with run.output(SPEED) as folder:
        ROUNDS.write(folder, rows)
        write_manifest(folder, {**made_from, "speed": settings.model_dump(), "state": figures["state"]})
    write_json(METRICS / "speed.json", figures)


def why_not(settings: Speed, facts: Mapping[str, Any]) -> str | None:
    """Why nothing is measured of the pruned model with this manifest; None if it is."""
    if not settings.repeats:
        return "evaluate.speed.repeats is 0"
    if layout_name(facts) == "dense" and not settings.always:
        return "unstructured zeros make nothing faster"
    return None


def layout_name(facts: Mapping[str, Any]) -> str:
    """How the checkpoint with this manifest is stored; dense where every tensor kept its shape."""
    return str(facts.get("layout", {}).get("name", "dense"))


if __name__ == "__main__":
    parser_of("measure_speed", __doc__).parse_args()
    sys.exit(run_stage("measure_speed", main, SECTIONS))
