"""Size, memory and speed of the pruned model and the dense one, measured in turns, and their ratios."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.manifest import read_manifest
from stages.artifacts.places import MODEL, PRUNED, TEXTS
from stages.artifacts.table import Row
from stages.artifacts.tokens import read_tokens
from stages.errors import ParameterError
from stages.measuring.speed.footprint import peak_in_process
from stages.measuring.speed.rounds import speed_ratios, speeds, time_in_turns
from stages.measuring.speed.size import macs_of, size_of
from stages.models.loading.load import load_model, longest_input
from stages.params import Params
from stages.params.evaluating import Speed
from stages.params.positions import check_positions
from stages.runtime.progress import progress

FOLDERS = {"dense": MODEL, "pruned": PRUNED}


def compare_speed(params: Params, trust_remote_code: bool) -> tuple[dict[str, Any], list[Row]]:
    """Measure data/model and data/pruned: the figures of both with their ratios, and the table of rounds.

    One model is in memory for sizes and peak memory, both for speed. Raises ParameterError where the text or the
    models' positions are too few, ArchitectureError for a model whose MACs cannot be counted.
    """
    settings, compute = params.evaluate.speed, params.compute
    prompt = read_prompt(settings)
    figures = {name: _size_figures(params, folder, trust_remote_code) for name, folder in FOLDERS.items()}
    steps = len(FOLDERS) * (1 + settings.warmup + settings.repeats)
    with progress(total=steps, desc="measure", unit="run") as bar:
        for name, folder in FOLDERS.items():
            peak = peak_in_process(folder, compute.dtype, compute.device, trust_remote_code, prompt, settings.generate)
            figures[name]["peak_memory_mb"] = peak
            bar.update()
        models = {
            name: load_model(folder, compute.dtype, compute.device, trust_remote_code)
            for name, folder in FOLDERS.items()
        }
        rows = time_in_turns(models, prompt, settings.generate, settings.warmup, settings.repeats, bar.update)
    ratio = ratios(rows, figures["dense"], figures["pruned"])
    measured = {
        **_machine(models["dense"]),
        **{name: {**figures[name], **speeds(rows, name)} for name in models},
        "ratio": ratio,
    }
    return measured, rows


def ratios(rows: Sequence[Row], dense: Mapping[str, Any], pruned: Mapping[str, Any]) -> dict[str, Any]:
    """The pruned model's figures over the dense one's; `realised` is the speed-up of prefill over that of its MACs.

    A ratio of sizes or MACs below 1 is a gain, one of tokens a second above 1.
    """
    sizes = {name: pruned[name] / dense[name] for name, value in dense.items() if not isinstance(value, dict) and value}
    speed = speed_ratios(rows, "pruned", "dense")
    return {**sizes, **speed, "realised": speed["prefill"]["median"] * sizes["prefill_macs"]}


def read_prompt(settings: Speed) -> Tensor:
    """(batch, prompt) ids, the beginning of the evaluation text; raises ParameterError if that is shorter."""
    tokens = read_tokens(TEXTS, "evaluation", read_manifest(TEXTS))
    count = settings.batch * settings.prompt
    if count > len(tokens):
        raise ParameterError(
            f"evaluate.speed: {settings.batch} prompts of {settings.prompt} tokens are more than the {len(tokens)} "
            "tokens of the evaluation text: use fewer or shorter ones, or more text (fetch.evaluation)"
        )
    return tokens[:count].long().view(settings.batch, settings.prompt)


def _size_figures(params: Params, folder: Path, trust: bool) -> dict[str, Any]:
    """Size and MACs of a model, which is in memory only meanwhile; ParameterError if it has too few positions."""
    model = load_model(folder, params.compute.dtype, "cpu", trust)
    check_positions(params, longest_input(model), ("evaluate.speed",))
    settings = params.evaluate.speed
    return {**size_of(model), **macs_of(model, settings.prompt, settings.generate)}


def _machine(model: Any) -> dict[str, Any]:
    """What speed depends on beside the models: device, threads, dtype, attention kernel, version of torch."""
    cuda = model.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(model.device) if cuda else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": str(getattr(model.config, "_attn_implementation", None)),
        "torch": torch.__version__,
    }
