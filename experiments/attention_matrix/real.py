"""How far pruning q and k takes the attention matrices of the project's model, by method (Liang et al., Figure 3).

Dense inputs, q and k of one block at a time, errors on the calibration windows and on windows of the evaluation
text. Reads ../../data/model and ../../data/texts; writes results/real.csv, of which figure3.py makes tables and the
figure; run in this folder after `dvc repro` in the project's.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.activations import states_shape
from stages.artifacts.manifest import read_manifest
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.methods import registry
from stages.methods.attention.contract import AttentionProblem, attention_error
from stages.methods.linear.contract import Budget, LinearProblem
from stages.models.streaming.attention import AttentionProbe
from stages.models.streaming.streamed import StreamedModel
from stages.params.yamlfile import read_yaml
from stages.runtime.progress import progress
from stages.solving.linear.attention import BatchCache, StoredInputs
from stages.walk.forward import advance, write_embeddings
from stages.walk.held_out import fitted_sequences
from stages.walk.statistics import InputStatistics, collect

RESULTS, DATA, CPU = Path("results"), Path("../../data"), torch.device("cpu")
CHUNK = 8
Settings = dict[str, Any]


def main() -> None:
    """Measure every method on the chosen blocks, sparsities and lengths."""
    settings: Settings = read_yaml(Path("params.yaml"))["real"]
    torch.set_num_threads(settings["threads"])
    RESULTS.mkdir(exist_ok=True)
    model = StreamedModel(DATA / "model", CPU, "float32")
    last = model.blocks - 1
    blocks = sorted({*range(0, model.blocks, settings["every"]), last})
    rows = list[Settings]()
    for length in settings["lengths"]:
        at_base = length == settings["length"]
        wanted = blocks if at_base else [last]
        for block, states in walked(model, settings, length, wanted):
            sparsities = settings["sparsities"] if block == last and at_base else settings["block_sparsities"]
            for row in measured(model, block, states, settings, sparsities):
                rows.append({"length": length, "block": block, **row})
    with (RESULTS / "real.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def walked(
    model: StreamedModel, settings: Settings, length: int, wanted: list[int]
) -> Iterator[tuple[int, list[Path]]]:
    """Files of the dense hidden states entering each chosen block, of the calibration and of the evaluation text."""
    folder, texts = RESULTS / "workspace", read_manifest(DATA / "texts")
    folder.mkdir(exist_ok=True)
    names = ("calibration", "evaluation")
    count = settings["tokens"] // length
    for name in names:
        windows = sample_windows(read_tokens(DATA / "texts", name, texts), count, length, settings["seed"])
        write_embeddings(model, windows, folder / f"{name}.safetensors", "safetensors", torch.float32)
    for block in progress(range(model.blocks), desc=f"windows of {length}", unit="block"):
        states = [folder / f"{name}.safetensors" for name in names]
        if block in wanted:
            yield block, states
        if block < max(wanted):
            for path in states:
                after = path.with_suffix(".next")
                advance(model, block, path, after, CHUNK, "safetensors", torch.float32)
                after.replace(path)


def measured(
    model: StreamedModel, block: int, states: list[Path], settings: Settings, sparsities: list[float]
) -> Iterator[Settings]:
    """A row for each method and sparsity: both errors, CPU seconds of the method."""
    statistics = collect(model, block, states[0], CHUNK, torch.float32)
    with AttentionProbe(model, block) as probe:
        weights = {linear: model.weights.current(linear).clone() for linear in probe.linears}
        names = {linear.name for linear in weights}
        (shared,) = (one for one in statistics if names <= set(one.linears))
        calibration, evaluation = (whole(probe, weights, path) for path in states)
        problem = attention_problem(calibration, torch.cat(list(weights.values())), shared)
        for sparsity in sparsities:
            for name, (method, given) in settings["methods"].items():
                begin = time.process_time()
                solver, budget = registry.load(method, given), Budget(sparsity)
                joint = registry.find(method).joint
                weight = solver(problem if joint else problem.linear, budget).weight
                seconds = time.process_time() - begin
                seen, fresh = (attention_error(inputs, weight).total for inputs in (calibration, evaluation))
                yield {
                    "sparsity": sparsity, "method": name, "calibration": seen, "held_out": fresh,
                    "cpu_seconds": round(seconds, 2),
                }  # fmt: skip


def whole(probe: AttentionProbe, weights: dict[Any, Tensor], states: Path) -> StoredInputs:
    """All sequences of a file."""
    return StoredInputs(probe, weights, states, states, 0, states_shape(states)[0], CHUNK, BatchCache())


def attention_problem(inputs: StoredInputs, dense: Tensor, shared: InputStatistics) -> AttentionProblem:
    """q and k as a problem, one sequence in eight held out to choose by."""
    rows = tuple(linear.shape[0] for linear in inputs.probe.linears)
    linear = LinearProblem(dense, shared.gram, shared.mean, shared.tokens, rows)
    split = fitted_sequences(inputs.last)
    return AttentionProblem(linear, dense, replace(inputs, last=split), replace(inputs, first=split))


if __name__ == "__main__":
    main()
