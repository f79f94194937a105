"""Measure the dense or the pruned model: perplexity by a named protocol, and lm-eval tasks or sampled images.

Reads  data/model or data/pruned (a Hugging Face folder), data/texts/evaluation.parquet.
Writes metrics/<dense|pruned>.json, the figures, and data/evaluation/<dense|pruned>/protocol.json,
how they were measured; of an image model, samples.safetensors (codes, labels) and samples.png beside it.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version

import torch

from stages.artifacts.atomic import write_json
from stages.artifacts.places import EVALUATION, METRICS
from stages.measuring.images.measured import measure_images
from stages.measuring.quality.evaluated import FOLDERS, open_evaluated
from stages.measuring.quality.perplexity import perplexity_of
from stages.measuring.quality.protocol import perplexity_in_words, tasks_in_words
from stages.measuring.quality.stored_losses import stored_losses
from stages.measuring.quality.tasks import evaluate_tasks
from stages.runtime.stage import StageRun, parser_of, run_stage

SECTIONS = ("compute", "evaluate.perplexity", "evaluate.tasks", "evaluate.images")
PACKAGES = ("torch", "transformers", "lm-eval")


def main(run: StageRun, which: str) -> None:
    """Measure model `which` and publish figures and protocol together."""
    settings, evaluated = run.params.evaluate, open_evaluated(run.params, which)
    model = evaluated.model
    tasks, longest = evaluate_tasks(model, evaluated.tokenizer, settings.tasks)
    measured = perplexity_of(evaluated.windows, stored_losses(run, evaluated))
    seconds = run.figures.pop("window_seconds", 0.0)
    if seconds and not run.figures["blocks_restored"]:
        run.figures["tokens_per_second"] = round(measured["tokens"] / seconds, 1)
    images = measure_images(run, model, evaluated.files, FOLDERS[which])
    if sampled := run.figures.pop("images_sampled", 0):
        run.figures["images_per_second"] = round(sampled / run.figures.pop("sampling_seconds"), 2)
    if model.device.type == "cuda":
        run.figures["peak_device_memory_mb"] = torch.cuda.max_memory_allocated(model.device) // 2**20

    packages = (*PACKAGES, "torchmetrics") if settings.images.features else PACKAGES
    protocol = {
        "perplexity": perplexity_in_words(settings.perplexity, evaluated.text, measured, str(model.dtype)),
        "tasks": tasks_in_words(settings.tasks, tasks, longest),
        "images": images.words if images else "",
        "images_left_out": images.left_out if images else {},
        "text": evaluated.text,
        "versions": {package: version(package) for package in packages},
    }
    with run.output(EVALUATION / which) as folder:
        write_json(folder / "protocol.json", protocol)
        if images:
            images.write(folder)
    write_json(METRICS / f"{which}.json", {"perplexity": measured, "tasks": tasks, "images": images and images.figures})


if __name__ == "__main__":
    parser = parser_of("evaluate", __doc__ or "")
    parser.add_argument("model", nargs="?", choices=sorted(FOLDERS), default="pruned", help="default: pruned")
    chosen = parser.parse_args().model
    cost = f"evaluate_{chosen}"
    sys.exit(run_stage("evaluate", partial(main, which=chosen), SECTIONS, cost, blockwise=True))
