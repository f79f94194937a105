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

from torch import Tensor

from stages.artifacts.atomic import write_json
from stages.artifacts.attention import ATTENTION_ERRORS, errors_by_block
from stages.artifacts.manifest import identity_of, read_json, read_manifest, sha256_of, verified, write_manifest
from stages.artifacts.places import ATTENTION, METRICS, MODEL, PRUNED, PRUNING_MANIFEST, TEXTS
from stages.artifacts.table import Row
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.errors import ArchitectureError, ArtifactError, ParameterError
from stages.measuring.attention import BlockErrors, compared
from stages.models.loading.compute import compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.params.evaluating import Attention
from stages.params.positions import check_positions
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model

SECTIONS = ("compute", "evaluate.attention")
log = logging.getLogger("secateur")


def main(run: StageRun) -> None:
    """Measure, or tell why not; publish the table, its manifest and the figures."""
    settings, facts = run.params.evaluate.attention, read_json(PRUNING_MANIFEST)
    rows = list[Row]()
    why = _why_not(facts.get("layout", {}), settings)
    told: dict[str, Any] = {"state": "off", "reason": why}
    made_from = {"texts": identity_of(TEXTS), "model": identity_of(MODEL), "pruned": sha256_of(PRUNING_MANIFEST)}
    if why is None:
        dense, _ = open_model(run.params.compute)
        pruned = _open_pruned(dense, facts)
        check_positions(run.params, dense.positions, ("evaluate.attention",))
        texts = _texts(settings, facts["calibration"])
        shape = dict(zip(("sequences", "length"), texts["held_out"].shape, strict=True))
        made_from |= compute_facts(dense.device, dense.dtype, run.params.compute.chunk)
        try:
            rows = _measured(dense, pruned, texts, run.params.compute.chunk)
            told = {"state": "measured", **shape, **figures(rows)}
        except ArchitectureError as error:
            log.warning("not measured: %s", error)
            told = {"state": "unreachable", "reason": str(error)}
    with run.output(ATTENTION) as folder:
        ATTENTION_ERRORS.write(folder, rows)
        write_manifest(folder, {**made_from, "attention": settings.model_dump(), "state": told["state"]})
    write_json(METRICS / "attention.json", told)


def _why_not(layout: dict[str, Any], settings: Attention) -> str | None:
    """Why a checkpoint of this layout is not measured; None if it is."""
    if layout.get("heads_removed", False):
        return "heads were removed: attention matrices have no counterpart"
    if layout.get("name") == "sliced":
        return "hidden states were sliced: its blocks cannot be given the dense model's"
    return None if settings.sequences else "evaluate.attention.sequences is 0"


def figures(rows: list[Row]) -> dict[str, Any]:
    """For each text and inputs the relative error of a block's heads together, mean, last and worst block, and δ.

    For each text the lowest and the highest β of a block.
    """
    found = dict[str, Any]()
    for (text, inputs), by_block in errors_by_block(rows).items():
        part = [row for row in rows if (row["text"], row["inputs"]) == (text, inputs)]
        errors = list(by_block.values())
        betas = [row["smallest_eigenvalue"] for row in part]
        of_text = found.setdefault(text, {"smallest_eigenvalue": {"lowest": min(betas), "highest": max(betas)}})
        of_text[inputs] = {
            "mean": sum(errors) / len(errors),
            "last": errors[-1],
            "worst": max(errors),
            "worst_block": errors.index(max(errors)),
            "least_probability": min(row["least_probability"] for row in part),
        }
    return found


def _measured(dense: StreamedModel, pruned: StreamedModel, texts: dict[str, Tensor], chunk: int) -> list[Row]:
    rows = list[Row]()
    blocks = progress(compared(dense, pruned, texts, chunk), total=dense.blocks, desc="compare", unit="block")
    for block, by_text in enumerate(blocks):
        rows += [row for text, errors in by_text.items() for row in _rows(text, block, errors)]
    return sorted(rows, key=lambda row: (row["text"], row["inputs"], row["block"], row["head"]))


def _rows(text: str, block: int, found: BlockErrors) -> list[Row]:
    return [
        {
            "text": text,
            "inputs": inputs,
            "block": block,
            "head": head,
            "relative_error": relative,
            "energy": energy,
            "least_probability": least,
            "smallest_eigenvalue": found.smallest_eigenvalue,
        }
        for inputs, errors in (("dense", found.dense), ("own", found.own))
        for head, (relative, energy, least) in enumerate(
            zip(errors.relative.tolist(), errors.energy.tolist(), errors.least.tolist(), strict=True)
        )
    ]


def _texts(settings: Attention, calibration: dict[str, Any]) -> dict[str, Tensor]:
    """Token ids (sequences, length) of both texts: the beginnings of windows that the solver saw, and unseen ones.

    No more and no longer ones than calibration had. Raises ParameterError for what model or text cannot serve.
    """
    facts = read_manifest(TEXTS)
    if facts["calibration"] != calibration["text"]:
        raise ArtifactError(f"{PRUNED} was calibrated on another text than {TEXTS} holds now: run `dvc repro`")
    seen = sample_windows(
        read_tokens(TEXTS, "calibration", facts),
        *(calibration[name] for name in ("sequences", "length", "seed")),
    )[: settings.sequences, : settings.length]
    unseen = read_tokens(TEXTS, "evaluation", facts)
    if seen.numel() > len(unseen):
        raise ParameterError(
            f"evaluate.attention: {seen.shape[0]} sequences of {seen.shape[1]} tokens are more than the {len(unseen)} "
            "tokens of the evaluation text: use fewer or shorter ones, or more text (fetch.evaluation)"
        )
    return {"calibration": seen, "held_out": unseen[: seen.numel()].view_as(seen)}


def _open_pruned(dense: StreamedModel, facts: dict[str, Any]) -> StreamedModel:
    """The pruned model, checked against its manifest and as pruned from the model at hand."""
    source = read_manifest(MODEL)
    if facts["source_files"] != source["files"]:
        raise ArtifactError(f"{PRUNED} was made from another model than {MODEL} holds now: run `dvc repro`")
    for name in facts["files"]:
        verified(PRUNED, name, facts)
    trust = bool(source.get("source", {}).get("trust_remote_code", False))
    return StreamedModel(PRUNED, dense.device, str(dense.dtype).removeprefix("torch."), trust)


if __name__ == "__main__":
    parser_of("compare_attention", __doc__).parse_args()
    sys.exit(run_stage("compare_attention", main, SECTIONS))
