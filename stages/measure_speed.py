"""How much smaller and faster the pruned model is than the dense one, both measured in this run, in turns.

Reads  data/model, data/pruned, data/texts (the prompt).
Writes data/speed (rounds.parquet, a row a round, model and phase; manifest.json) and metrics/speed.json.
Only structured pruning makes a dense checkpoint smaller, so for any other the outputs say `state: off` and why, unless
evaluate.speed.always is set. Both models are in memory at once. Timings differ from run to run: no stage but the
report reads them.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.atomic import write_json
from stages.artifacts.manifest import identity_of, read_json, read_manifest, sha256_of, verified, write_manifest
from stages.artifacts.places import METRICS, MODEL, PRUNED, PRUNING_MANIFEST, SPEED, TEXTS
from stages.artifacts.speed import ROUNDS
from stages.artifacts.tokens import read_tokens
from stages.errors import ArtifactError, ParameterError
from stages.measuring.speed.footprint import peak_in_process
from stages.measuring.speed.rounds import Row, speed_ratios, speeds, timed
from stages.measuring.speed.size import macs_of, size_of
from stages.models.loading.load import load_model, longest_input
from stages.params import Params
from stages.params.evaluating import Speed
from stages.params.positions import check_positions
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage

SECTIONS = ("compute", "evaluate.speed")
FOLDERS = {"dense": MODEL, "pruned": PRUNED}


def main(run: StageRun) -> None:
    """Measure, or tell why not; publish the table, its manifest and the figures."""
    settings, facts = run.params.evaluate.speed, read_json(PRUNING_MANIFEST)
    rows, reason = list[Row](), why_not(settings, facts)
    told: dict[str, Any] = {"state": "off", "reason": reason}
    if reason is None:
        told, rows = _measured(run, facts)
    made_from = {"texts": identity_of(TEXTS), "model": identity_of(MODEL), "pruned": sha256_of(PRUNING_MANIFEST)}
    with run.output(SPEED) as folder:
        ROUNDS.write(folder, rows)
        write_manifest(folder, {**made_from, "speed": settings.model_dump(), "state": told["state"]})
    write_json(METRICS / "speed.json", told)


def why_not(settings: Speed, facts: dict[str, Any]) -> str | None:
    """Why nothing is measured of the pruned model with this manifest; None if it is."""
    if not settings.repeats:
        return "evaluate.speed.repeats is 0"
    if layout_name(facts) == "dense" and not settings.always:
        return "unstructured zeros make nothing faster"
    return None


def layout_name(facts: dict[str, Any]) -> str:
    """How the checkpoint with this manifest is stored; dense where every tensor kept its shape."""
    return str(facts.get("layout", {}).get("name", "dense"))


def ratios(rows: list[Row], dense: dict[str, Any], pruned: dict[str, Any]) -> dict[str, Any]:
    """The pruned model's figures over the dense one's; `realised` is the speed-up of prefill over that of its MACs.

    A ratio of sizes or MACs below 1 is a gain, one of tokens a second above 1.
    """
    found = {name: pruned[name] / dense[name] for name, value in dense.items() if not isinstance(value, dict) and value}
    speed = speed_ratios(rows, "pruned", "dense")
    return {**found, **speed, "realised": speed["prefill"]["median"] * found["prefill_macs"]}


def _measured(run: StageRun, facts: dict[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    settings, compute = run.params.evaluate.speed, run.params.compute
    trust, prompt = _checked(facts), _prompt(settings)
    figures: dict[str, dict[str, Any]] = {
        name: _sizes(run.params, folder, compute.dtype, trust) for name, folder in FOLDERS.items()
    }
    steps = len(FOLDERS) * (1 + settings.warmup + settings.repeats)
    with progress(total=steps, desc="measure", unit="run") as bar:
        for name, folder in FOLDERS.items():
            peak = peak_in_process(folder, compute.dtype, compute.device, trust, prompt, settings.generate)
            figures[name]["peak_memory_mb"] = peak
            bar.update()
        models = {name: load_model(folder, compute.dtype, compute.device, trust) for name, folder in FOLDERS.items()}
        rows = timed(models, prompt, settings.generate, settings.warmup, settings.repeats, bar.update)
    ratio = ratios(rows, figures["dense"], figures["pruned"])
    told = {
        "state": "measured",
        "layout": layout_name(facts),
        **settings.model_dump(exclude={"always"}),
        **_machine(models["dense"]),
        **{name: {**figures[name], **speeds(rows, name)} for name in models},
        "ratio": ratio,
    }
    return told, rows


def _machine(model: Any) -> dict[str, Any]:
    cuda = model.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(model.device) if cuda else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "torch": torch.__version__,
    }


def _prompt(settings: Speed) -> Tensor:
    """(batch, prompt) ids, the beginning of the evaluation text."""
    tokens = read_tokens(TEXTS, "evaluation", read_manifest(TEXTS))
    count = settings.batch * settings.prompt
    if count > len(tokens):
        raise ParameterError(
            f"evaluate.speed: {settings.batch} prompts of {settings.prompt} tokens are more than the {len(tokens)} "
            "tokens of the evaluation text: use fewer or shorter ones, or more text (fetch.evaluation)"
        )
    return tokens[:count].long().view(settings.batch, settings.prompt)


def _sizes(params: Params, folder: Path, dtype: str, trust: bool) -> dict[str, Any]:
    """Size and MACs of a model, which is in memory only meanwhile; ParameterError if it has too few positions."""
    model = load_model(folder, dtype, "cpu", trust)
    check_positions(params, longest_input(model), ("evaluate.speed",))
    settings = params.evaluate.speed
    return {**size_of(model), **macs_of(model, settings.prompt, settings.generate)}


def _checked(facts: dict[str, Any]) -> bool:
    """Whether the models' own code may run; ArtifactError if files are not what they were, or of another model."""
    source = read_manifest(MODEL)
    if facts["source_files"] != source["files"]:
        raise ArtifactError(f"{PRUNED} was made from another model than {MODEL} holds now: run `dvc repro`")
    for folder, manifest in ((MODEL, source), (PRUNED, facts)):
        for name in manifest["files"]:
            verified(folder, name, manifest)
    return bool(source.get("source", {}).get("trust_remote_code", False))


if __name__ == "__main__":
    parser_of("measure_speed", __doc__).parse_args()
    sys.exit(run_stage("measure_speed", main, SECTIONS))
