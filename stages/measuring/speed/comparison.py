"""Size, memory and speed of the pruned model and the dense one, measured in turns, and their ratios."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.images import images_of
from stages.artifacts.manifest import read_manifest, trusts_code
from stages.artifacts.places import MODEL, PRUNED, TEXTS
from stages.artifacts.table import Row
from stages.artifacts.tokens import read_tokens
from stages.errors import ParameterError
from stages.measuring.speed.drawing import Drawing
from stages.measuring.speed.footprint import peak_in_process
from stages.measuring.speed.rounds import draw_in_turns, speed_ratios, speeds, time_in_turns
from stages.measuring.speed.size import image_macs, macs_of, size_of
from stages.models.loading.load import load_model, longest_input
from stages.params import Params
from stages.params.evaluating import Speed
from stages.params.positions import check_positions
from stages.runtime.progress import progress

FOLDERS = {"dense": MODEL, "pruned": PRUNED}


def compare_speed(params: Params, source: Mapping[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """Measure data/model and data/pruned: the figures of both with their ratios, and the table of rounds.

    source: the manifest of data/model. Image models draw whole images, too, guided as those that are evaluated.
    One model is in memory for sizes and peak memory, both for speed. Raises ParameterError where the text or the
    models' positions are too few, ArchitectureError for a model whose MACs cannot be counted.
    """
    settings, compute = params.evaluate.speed, params.compute
    prompt, trust_remote_code = read_prompt(settings), trusts_code(source)
    images, drawing = images_of(source), None
    if images is not None:
        drawing = Drawing(settings.batch, images.classes, images.codes, params.evaluate.images.guidance_scale)
    figures = {name: _size_figures(params, folder, trust_remote_code, drawing) for name, folder in FOLDERS.items()}
    steps = len(FOLDERS) * (1 + (1 + bool(drawing)) * (settings.warmup + settings.repeats))
    with progress(total=steps, desc="measure", unit="run") as bar:
        for name, folder in FOLDERS.items():
            figures[name]["peak_memory_mb"] = peak_in_process(
                folder, compute.dtype, compute.device, trust_remote_code, prompt, settings.generate, drawing
            )
            bar.update()
        models = {
            name: load_model(folder, compute.dtype, compute.device, trust_remote_code)
            for name, folder in FOLDERS.items()
        }
        rows = time_in_turns(models, prompt, settings.generate, settings.warmup, settings.repeats, bar.update)
        if drawing:
            rows += draw_in_turns(models, drawing, settings.warmup, settings.repeats, bar.update)
    ratio = ratios(rows, figures["dense"], figures["pruned"])
    measured = {
        **_machine(models["dense"]),
        **({"guidance_scale": drawing.guidance_scale, "codes": drawing.codes} if drawing else {}),
        **{name: {**figures[name], **speeds(rows, name)} for name in models},
        "ratio": ratio,
    }
    return measured, rows


def ratios(rows: Sequence[Row], dense: Mapping[str, Any], pruned: Mapping[str, Any]) -> dict[str, Any]:
    """The pruned model's figures over the dense one's; `realised` is the speed-up of prefill over that of its MACs.

    A ratio of sizes or MACs below 1 is a gain, one of tokens or images a second above 1.
    """
    sizes = {name: pruned[name] / dense[name] for name, value in dense.items() if not isinstance(value, dict) and value}
    speed = speed_ratios(rows, "pruned", "dense")
    return {**sizes, **speed, "realised": speed["prefill"]["median"] * sizes["prefill_macs"]}


def read_prompt(settings: Speed) -> Tensor:
    """(batch, prompt) ids, the beginning of the evaluation text, or of each of its first sequences if it is of images.

    Raises ParameterError if the text has fewer tokens, or an image fewer than are read and generated.
    """
    texts = read_manifest(TEXTS)
    tokens, sequence = read_tokens(TEXTS, "evaluation", texts), texts["evaluation"].get("sequence")
    if sequence is not None:
        return _image_prompt(settings, tokens.view(-1, sequence))
    count = settings.batch * settings.prompt
    if count > len(tokens):
        raise ParameterError(
            f"evaluate.speed: {settings.batch} prompts of {settings.prompt} tokens are more than the {len(tokens)} "
            "tokens of the evaluation text: use fewer or shorter ones, or more text (fetch.evaluation)"
        )
    return tokens[:count].long().view(settings.batch, settings.prompt)


def _image_prompt(settings: Speed, sequences: Tensor) -> Tensor:
    """`read_prompt` of images, a sequence (1 + codes) each."""
    count, length = sequences.shape
    if settings.prompt + settings.generate > length:
        raise ParameterError(
            f"evaluate.speed.prompt + generate: expected at most {length}, the class and the codes of an image, "
            f"got {settings.prompt + settings.generate}: shorten either"
        )
    if settings.batch > count:
        raise ParameterError(
            f"evaluate.speed.batch: {settings.batch} prompts are more than the {count} evaluation images: use fewer, "
            "or more images (fetch.evaluation)"
        )
    return sequences[: settings.batch, : settings.prompt]


def _size_figures(params: Params, folder: Path, trust: bool, drawing: Drawing | None) -> dict[str, Any]:
    """Size and MACs of a model, which is in memory only meanwhile; ParameterError if it has too few positions."""
    model = load_model(folder, params.compute.dtype, "cpu", trust)
    check_positions(params, longest_input(model), ("evaluate.speed",))
    settings = params.evaluate.speed
    macs = macs_of(model, settings.prompt, settings.generate)
    if drawing:
        macs["images_macs"] = image_macs(model, drawing.codes, drawing.halves)
    return {**size_of(model), **macs}


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
