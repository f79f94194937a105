"""Measure the dense or the pruned model: perplexity by a named protocol, and lm-eval tasks.

Reads  data/model or data/pruned (a Hugging Face folder), data/texts/evaluation.parquet.
Writes metrics/<dense|pruned>.json, the figures, and data/evaluation/<dense|pruned>/protocol.json,
how they were measured.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.atomic import write_json
from stages.artifacts.code import code_of
from stages.artifacts.manifest import read_json, read_manifest, verified
from stages.artifacts.places import EVALUATION, METRICS, MODEL, PRUNED, PRUNING_MANIFEST, TEXTS
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.artifacts.tokens import read_tokens
from stages.measuring.quality.perplexity import losses, perplexity_of
from stages.measuring.quality.protocol import perplexity_in_words, tasks_in_words
from stages.measuring.quality.tasks import accuracies
from stages.measuring.quality.windows import Window, windows_of
from stages.models.loading.compute import compute_facts
from stages.models.loading.load import load_model, load_tokenizer, longest_input
from stages.params.positions import check_positions
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage

SECTIONS = ("compute", "evaluate.perplexity", "evaluate.tasks")
MODELS = {"dense": MODEL, "pruned": PRUNED}
TOGETHER = 8
"""Windows whose losses are kept together."""
PACKAGES = ("torch", "transformers", "lm-eval")


def main(run: StageRun, which: str) -> None:
    """Measure model `which` and publish figures and protocol together."""
    compute, settings = run.params.compute, run.params.evaluate
    facts = read_manifest(TEXTS)
    tokens = read_tokens(TEXTS, "evaluation", facts)
    trusted = _checked(which)
    wants_tokenizer = settings.perplexity.bos or settings.tasks.names
    tokenizer = load_tokenizer(MODELS[which], trusted) if wants_tokenizer else None
    windows = windows_of(settings.perplexity, len(tokens), getattr(tokenizer, "bos_token_id", None))
    model = load_model(MODELS[which], compute.dtype, compute.device, trusted)
    check_positions(run.params, longest_input(model), ("evaluate.perplexity", "evaluate.tasks"))

    tasks, longest = accuracies(model, tokenizer, settings.tasks)
    measured = perplexity_of(windows, _losses(run, which, model, tokens, windows))
    seconds = run.figures.pop("window_seconds", 0.0)
    if seconds and not run.figures["blocks_restored"]:
        run.figures["tokens_per_second"] = round(measured["tokens"] / seconds, 1)
    if model.device.type == "cuda":
        run.figures["peak_device_memory_mb"] = torch.cuda.max_memory_allocated(model.device) // 2**20

    protocol = {
        "perplexity": perplexity_in_words(settings.perplexity, facts["evaluation"], measured, str(model.dtype)),
        "tasks": tasks_in_words(settings.tasks, tasks, longest),
        "text": facts["evaluation"],
        "versions": {package: version(package) for package in PACKAGES},
    }
    with run.output(EVALUATION / which) as folder:
        write_json(folder / "protocol.json", protocol)
    write_json(METRICS / f"{which}.json", {"perplexity": measured, "tasks": tasks})


def _losses(run: StageRun, which: str, model: Any, tokens: Tensor, windows: list[Window]) -> list[float]:
    """The loss of every window; those of a group of windows are kept in the block store."""
    facts = {
        "code": code_of(_write_losses),
        "model": _manifest(which)["files"],
        "tokens": read_manifest(TEXTS)["files"]["evaluation.parquet"],
        **compute_facts(model.device, model.dtype, run.params.compute.chunk),
    }
    found = list[float]()
    with progress(total=len(windows), desc="perplexity", unit="window") as bar:
        for index in range(0, len(windows), TOGETHER):
            group = windows[index : index + TOGETHER]
            key = key_of(task="evaluate", windows=[asdict(window) for window in group], **facts)
            write = partial(_write_losses, model, tokens, group, run.params.compute.chunk)
            path = run.note(run.blocks.one(Block("evaluate", index // TOGETHER, key), write))
            found += read_tensors(path)["losses"].tolist()
            bar.update(len(group))
    return found


def _write_losses(model: Any, tokens: Tensor, windows: list[Window], chunk: int, path: Path) -> dict[str, float]:
    begin = time.perf_counter()
    write_tensors(path, {"losses": torch.tensor(losses(model, tokens, windows, chunk), dtype=torch.float64)})
    return {"window_seconds": time.perf_counter() - begin}


def _checked(which: str) -> bool:
    """Whether the model's own code may run; raises ArtifactError if a file is not what its manifest says."""
    manifest = _manifest(which)
    source = manifest if which == "dense" else manifest.get("source", {})
    for name in manifest.get("files", {}):
        verified(MODELS[which], name, manifest)
    return bool(source.get("source", {}).get("trust_remote_code", False))


def _manifest(which: str) -> dict[str, Any]:
    return read_manifest(MODEL) if which == "dense" else read_json(PRUNING_MANIFEST)


if __name__ == "__main__":
    parser = parser_of("evaluate", __doc__ or "")
    parser.add_argument("model", nargs="?", choices=sorted(MODELS), default="pruned", help="default: pruned")
    chosen = parser.parse_args().model
    cost = f"evaluate_{chosen}"
    sys.exit(run_stage("evaluate", partial(main, which=chosen), SECTIONS, cost, blockwise=True))
