"""Prunes a set's LlamaGen by every method at every sparsity, and measures samples; all by the project's own stages.

    python prune.py shapes

Writes results/<set>/runs.json and data/<set>/samples/<run>.safetensors (codes and labels). Run in this folder. For
every seed there is a workspace in data/<set>/workspaces, in which the model draws its own calibration images, and one
for each method, which shares its model, texts, activations, statistics and finished blocks. Finished blocks and samples
of a run that was stopped are not made again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from common import Settings, folder_of, results_of, settings_of
from safetensors.torch import load_file
from stage_runs import ROOT, run_jobs, run_stage

from stages import assemble, evaluate, extract, fetch, solve, statistics  # noqa: F401  forks find them imported
from stages.params.yamlfile import read_yaml, yaml_text

SHARED = ("data/model", "data/texts", "data/activations", "data/statistics", ".cache")
SAMPLING_SEED = 1000
"""Added to a run's seed where samples are drawn, so that they are no calibration images."""


def main(name: str) -> None:
    """Run the seeds' common stages, then all prunings, and gather the figures."""
    settings = settings_of(name)["prune"]
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the fresh processes in which assemble loads a checkpoint
    samples = folder_of(name) / "samples"
    samples.mkdir(exist_ok=True)
    seeds, methods = settings["seeds"], list(settings["methods"])
    run_jobs([(prepare, (name, seed)) for seed in seeds], settings["workers"])
    run_jobs([(prune, (name, seed, method)) for seed in seeds for method in methods], settings["workers"])
    pairs = [(seed, method) for method in ("dense", *methods) for seed in seeds]
    rows = [row for pair in pairs for row in figures_of(name, *pair)]
    (results_of(name) / "runs.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def workspace_of(name: str, seed: int, method: str = "dense") -> Path:
    """The workspace of a method's prunings with a seed; `dense`: that of the seed's common stages."""
    return folder_of(name) / "workspaces" / f"{seed}" / method


def prepare(name: str, seed: int) -> None:
    """Calibration images, their statistics, and the dense model's figures."""
    workspace = workspace_of(name, seed)
    write_params(workspace, name, seed, {})
    for stage in ("fetch", "extract", "statistics"):
        run_stage(workspace, stage)
    run_stage(workspace, "evaluate", "dense")
    keep(workspace, "dense", name, {"method": "dense", "sparsity": 0.0, "seed": seed})


def prune(name: str, seed: int, method: str) -> None:
    """One method at every sparsity."""
    settings, workspace = settings_of(name)["prune"], workspace_of(name, seed, method)
    for part in SHARED:
        link = workspace / part
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to((workspace_of(name, seed) / part).resolve())
    for sparsity in settings["sparsities"]:
        write_params(workspace, name, seed, {"sparsity": sparsity, **settings["methods"][method]})
        for stage in ("solve", "assemble", "evaluate"):
            run_stage(workspace, stage)
        keep(workspace, "pruned", name, {"method": method, "sparsity": sparsity, "seed": seed})


def write_params(workspace: Path, name: str, seed: int, changes: Settings) -> None:
    """params.yaml of the project with this experiment's protocol."""
    settings, folder = settings_of(name), folder_of(name).resolve()
    own, values = settings["prune"], read_yaml(ROOT / "params.yaml")
    sampling = {"guidance_scale": own["guidance"], "batch": own["batch"]}
    source = {"source": "generated", "images": own["calibration"], "seed": seed, "device": "cpu", **sampling}
    held = {"source": "images", "path": str(folder / "images/test"), "device": "cpu", "unconditional": False}
    model = {"source": "local", "path": str(folder / "model")}
    values["fetch"] = {"model": model, "calibration": source, "evaluation": held}
    sequence = 1 + (settings["images"]["size"] // 2 ** (len(settings["tokenizer"]["multipliers"]) - 1)) ** 2
    values["calibration"] = {"sequences": 2 * own["calibration"] * own["classes"], "length": sequence, "seed": seed}
    values["compute"] = {**values["compute"], "device": "cpu", "chunk": 64}
    images = {
        "count": own["samples"], "seed": SAMPLING_SEED + seed, "features": str(folder / "classifier"),
        "reference": str(folder / "images/test"), "shown": 2 * own["classes"], **sampling,
    }  # fmt: skip
    perplexity = {"window": sequence, "stride": sequence, "bos": False, "windows": own["windows"]}
    none = {"tasks": {"names": []}, "attention": {"sequences": 0}, "speed": {"repeats": 0}}
    values["evaluate"] = {"perplexity": perplexity, "images": images, **none}
    values["solve"] = {**values["solve"], "method": "newton", **changes}
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "params.yaml").write_text(yaml_text(values), encoding="utf-8")


def keep(workspace: Path, which: str, name: str, run: Settings) -> None:
    """Put a run's figures beside its workspace's, and its samples in the set's folder."""
    metrics = json.loads((workspace / f"metrics/{which}.json").read_text(encoding="utf-8"))
    checkpoint = workspace / "data" / ("model" if which == "dense" else "pruned") / "model.safetensors"
    figures = {"perplexity": metrics["perplexity"]["value"], "parameters": parameters_of(checkpoint)}
    row = {**run, **metrics["images"], **figures}
    target = folder_of(name) / "samples/{seed}_{method}_{sparsity:g}.safetensors".format(**run)
    shutil.copy(workspace / f"data/evaluation/{which}/samples.safetensors", target)
    (workspace / f"figures_{run['sparsity']:g}.json").write_text(json.dumps(row), encoding="utf-8")
    print(row, flush=True)


def parameters_of(checkpoint: Path) -> int:
    """Numbers in the tensors of a checkpoint's file."""
    return sum(tensor.numel() for tensor in load_file(checkpoint).values())


def figures_of(name: str, seed: int, method: str) -> list[dict[str, Any]]:
    """The rows that `keep` wrote in a workspace."""
    sparsities = [0.0] if method == "dense" else settings_of(name)["prune"]["sparsities"]
    folder = workspace_of(name, seed, method)
    return [json.loads((folder / f"figures_{at:g}.json").read_text(encoding="utf-8")) for at in sparsities]


if __name__ == "__main__":
    main(sys.argv[1])
