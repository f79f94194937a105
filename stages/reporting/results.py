"""Reads the outputs of all earlier stages for the report, and checks that they belong to one pruned model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.artifacts.attention import ATTENTION_ERRORS
from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import identity_of, read_json, read_manifest, sha256_of, verified
from stages.artifacts.places import ATTENTION, COSTS, EVALUATION, METRICS, PRUNED, PRUNING_MANIFEST, SOLUTION, SPEED
from stages.errors import ArtifactError

MODELS = ("dense", "pruned")
KINDS = ("perplexity", "tasks", "images")
"""Measurements that protocol.json tells the way of."""
SAMPLES = "samples.png"
STAGES = (
    "fetch", "extract", "statistics", "solve", "assemble", "compare_attention", "measure_speed", "evaluate_dense",
    "evaluate_pruned",
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """The outputs of a run that the report shows, as they were read.

    metrics:  by model, dense and pruned: perplexity and tasks.
    protocol: how both were measured, in words.
    rows:     a row a linear, in the order of the blocks.
    solution: facts about the solution (method, settings, inputs).
    manifest: facts about the pruned checkpoint.
    costs:    by stage: seconds, cpu_seconds, peak_memory_mb and more.
    hashes:   sha256 of texts, model and pruned model, by name.
    attention: figures of the attention matrices, or why there are none.
    attention_rows: a row a text, inputs, block and head.
    speed:    figures of size, memory and speed, or why there are none.
    pictures: by model: a PNG of samples, the same classes and random numbers for both; none of a text model.
    """

    metrics: Mapping[str, Any]
    protocol: Mapping[str, Any]
    rows: list[dict[str, Any]]
    solution: Mapping[str, Any]
    manifest: Mapping[str, Any]
    costs: Mapping[str, Mapping[str, float]]
    hashes: Mapping[str, str]
    attention: Mapping[str, Any]
    attention_rows: list[dict[str, Any]]
    speed: Mapping[str, Any]
    pictures: Mapping[str, bytes]


def read_results() -> Results:
    """Read the outputs; raises ArtifactError for any that is missing, corrupt, or of another model or protocol."""
    solution = read_manifest(SOLUTION)
    rows = LINEARS.read(verified(SOLUTION, LINEARS.name, solution))
    manifest = read_json(PRUNING_MANIFEST)
    protocol = _protocol()
    attention, attention_rows = _attention()
    calibration = manifest.get("calibration", {}).get("text", {})
    hashes = {
        "evaluation text": protocol["text"].get("sha256", ""),
        "calibration text": calibration.get("sha256", ""),
        "solution": identity_of(SOLUTION),
    }
    hashes |= {f"model, {name}": digest for name, digest in manifest.get("source_files", {}).items()}
    hashes |= {f"pruned, {name}": digest for name, digest in manifest.get("files", {}).items()}
    return Results(
        metrics={model: read_json(METRICS / f"{model}.json") for model in MODELS},
        protocol=protocol,
        rows=rows,
        solution={key: value for key, value in solution.items() if key != "files"},
        manifest=manifest,
        costs=_costs(),
        hashes={name: digest for name, digest in hashes.items() if digest},
        attention=attention,
        attention_rows=attention_rows,
        speed=_speed(),
        pictures=_pictures(),
    )


def _protocol() -> dict[str, Any]:
    """The evaluation protocol; raises ArtifactError where the dense and the pruned model had different ones."""
    dense, pruned = (read_json(EVALUATION / model / "protocol.json") for model in MODELS)
    for kind in KINDS:
        if dense[kind] != pruned[kind]:
            raise ArtifactError(
                f"the {kind} of the two models was measured in two ways: dense by `{dense[kind]}`, pruned by "
                f"`{pruned[kind]}`: run `dvc repro`, which measures both alike"
            )
    return dense


def _pictures() -> dict[str, bytes]:
    """The pictures of samples by model, if both have one: there is none where evaluate.images.shown is 0."""
    paths = {model: EVALUATION / model / SAMPLES for model in MODELS}
    there = all(path.is_file() for path in paths.values())
    return {model: path.read_bytes() for model, path in paths.items()} if there else {}


def _attention() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of compare_attention and the rows of its table; why there are none where it did not run."""
    path = METRICS / "attention.json"
    if not path.exists():
        return {"state": "off", "reason": "compare_attention did not run"}, []
    return read_json(path), ATTENTION_ERRORS.read(verified(ATTENTION, ATTENTION_ERRORS.name, _of_this_model(ATTENTION)))


def _speed() -> dict[str, Any]:
    """Figures of measure_speed; why there are none where it did not run."""
    path = METRICS / "speed.json"
    if not path.exists():
        return {"state": "off", "reason": "measure_speed did not run"}
    _of_this_model(SPEED)
    return read_json(path)


def _of_this_model(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of measurements; raises ArtifactError if they are of another pruned model."""
    manifest = read_manifest(folder)
    if manifest["pruned"] != sha256_of(PRUNING_MANIFEST):
        raise ArtifactError(f"{folder} belongs to another pruned model than {PRUNED} holds now: run `dvc repro`")
    return manifest


def _costs() -> dict[str, dict[str, float]]:
    """Cost by stage, in the order of the pipeline; the report's own is not known yet."""
    costs = {path.stem: read_json(path) for path in COSTS.glob("*.json") if path.stem != "report"}
    order = [name for name in STAGES if name in costs] + sorted(set(costs) - set(STAGES))
    return {name: costs[name] for name in order}
