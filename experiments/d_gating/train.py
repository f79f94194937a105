"""Train the classifier with gated heads and without, and follow the norms of its heads (Figure 1 of the paper).

Reads data/texts.safetensors; writes results/runs.csv, a row for each run and epoch; run in this folder. Runs are
shared out to as many processes of one thread as params.yaml says.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model import Classifier, head_groups
from safetensors import safe_open
from torch import Tensor, nn

from stages.gating.baselines import GroupLasso
from stages.gating.gate import gate
from stages.params.yamlfile import read_yaml

RESULTS, TEXTS = Path("results"), Path("data/texts.safetensors")
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
"""For glibc in the processes: what a step frees the next one takes again, a tenth of its time less."""
Settings = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """method: gated (with D factors), naive or proximal; strength: λ; epochs: passes over the training texts."""

    method: str
    depth: int
    strength: float
    seed: int
    epochs: int


@dataclass(frozen=True)
class Texts:
    """Distinct tokens (n, length), their counts and the labels of one half; how many topics and tokens there are."""

    tokens: Tensor
    counts: Tensor
    labels: Tensor
    topics: int
    vocabulary: int

    def batch(self, chosen: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Some texts as the model takes them, no wider than the one with most distinct tokens, and their labels."""
        counts = self.counts[chosen]
        width = int((counts > 0).sum(1).max())
        return (self.tokens[chosen, :width], counts[:, :width]), self.labels[chosen]


def main() -> None:
    """Make all runs and write the table."""
    params = read_yaml(Path("params.yaml"))
    settings = params["train"]
    runs = [
        Run(one["method"], one.get("depth", 2), strength, seed, one["epochs"])
        for one in settings["runs"]
        for strength in one["strengths"]
        for seed in one["seeds"]
    ]
    os.environ |= KEEP_MEMORY
    RESULTS.mkdir(exist_ok=True)
    rows: list[Settings] = []
    with multiprocessing.get_context("spawn").Pool(params["compute"]["workers"], torch.set_num_threads, (1,)) as pool:
        for number, found in enumerate(pool.imap(followed, [(run, settings) for run in runs]), 1):
            rows += found
            write(rows)
            print(f"{number} of {len(runs)}: {runs[number - 1]}, {end_of_run(found[-1])}", flush=True)


def write(rows: list[Settings]) -> None:
    """The table of all runs so far."""
    with (RESULTS / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def followed(task: tuple[Run, Settings]) -> list[Settings]:
    """Train one run; gives a row after every epoch."""
    run, settings = task
    # Products in bfloat16 where the CPU has units for them; sums, gates, penalties and weights stay float32.
    torch.set_float32_matmul_precision(settings["precision"])
    train, test = (read_texts(part) for part in ("train", "test"))
    torch.manual_seed(run.seed)
    model = Classifier(train.vocabulary, settings["width"], settings["heads"], train.topics)
    training = Training(model, run, settings)
    order, rows, begin = torch.Generator().manual_seed(run.seed), list[Settings](), time.process_time()
    for epoch in range(run.epochs):
        if epoch == run.epochs - settings["last"]["epochs"]:
            training.set_momentum(settings["last"]["momentum"])
        losses = [
            training.step(*train.batch(chosen)) for chosen in batches(len(train.labels), settings["batch"], order)
        ]
        rows.append(
            {
                **vars(run), "epoch": epoch + 1, "loss": f"{sum(losses) / len(losses):.4f}",
                "accuracy": f"{accuracy(model, test):.4f}", "cpu_seconds": f"{time.process_time() - begin:.1f}",
                **{f"head_{number}": f"{norm:.4e}" for number, norm in enumerate(training.norms().tolist())},
            }
        )  # fmt: skip
    return rows


class Training:
    """A model, its penalty and its optimisers: SGD with momentum; the loss's gradient is no longer than `clip`.

    The embedding gets momentum's effective rate instead, η/(1 - μ), because a velocity for all its rows would cost
    more than everything else; its gradient is not clipped.
    """

    def __init__(self, model: Classifier, run: Run, settings: Settings) -> None:
        self._model, self._run = model, run
        self._rate, momentum = settings["rate"], settings["momentum"]
        families = [head_groups(settings["heads"])]
        embedding = model.embedding.weight
        groups = [{"params": list(model.parameters())}]
        if run.method == "gated":
            self._groups = gating = gate(model, families, run.depth)
            groups = gating.parameter_groups(strength=run.strength)
        else:
            self._groups = GroupLasso(model, families)
        groups[0]["params"] = [one for one in groups[0]["params"] if one is not embedding]
        self._clip, self._clipped = settings["clip"], [one for group in groups for one in group["params"]]
        self._optimizers = [
            torch.optim.SGD(groups, lr=self._rate, momentum=momentum, fused=True),
            torch.optim.SGD([embedding], lr=self._rate),
        ]
        if run.method == "gated":
            gating.check(self._optimizers[0], run.strength)
        self.set_momentum(momentum)

    def set_momentum(self, momentum: float) -> None:
        """Set SGD's momentum, and the embedding's rate to rate / (1 - momentum), from the next step on."""
        dense, embedding = self._optimizers
        for group in dense.param_groups:
            group["momentum"] = momentum
        embedding.param_groups[0]["lr"] = self._effective = self._rate / (1 - momentum)

    def step(self, inputs: tuple[Tensor, Tensor], labels: Tensor) -> float:
        """One step of the optimisers; gives the loss before it, without penalty."""
        loss = nn.functional.cross_entropy(self._model(*inputs), labels)
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._clipped, self._clip)
        if self._run.method == "naive":
            self._groups.penalty(self._run.strength).backward()  # beside the clipped gradient, as gates' weight decay
        for optimizer in self._optimizers:
            optimizer.step()
        if self._run.method == "proximal":
            self._groups.shrink(self._run.strength * self._effective)
        return float(loss.detach())

    def norms(self) -> Tensor:
        """Norms of the heads, (heads,)."""
        return self._groups.norms()[0]


def batches(count: int, size: int, order: torch.Generator) -> Iterator[Tensor]:
    """All texts in a new order; what does not fill a batch waits for another epoch."""
    return (one for one in torch.randperm(count, generator=order).split(size) if len(one) == size)


@torch.no_grad()
def accuracy(model: nn.Module, texts: Texts, size: int = 64) -> float:
    """Share of the test texts whose topic has the largest logit."""
    right = 0
    for chosen in torch.arange(len(texts.labels)).split(size):
        inputs, labels = texts.batch(chosen)
        right += int((model(*inputs).argmax(1) == labels).sum())
    return right / len(texts.labels)


def read_texts(part: str) -> Texts:
    """One half of data/texts.safetensors."""
    with safe_open(TEXTS, framework="pt") as file:
        facts = file.metadata()
        tensors = [file.get_tensor(f"{part}.{name}") for name in ("tokens", "counts", "labels")]
    return Texts(*tensors, topics=len(json.loads(facts["topics"])), vocabulary=int(facts["vocabulary"]))


def end_of_run(row: Settings) -> str:
    """The last row of a run, in words."""
    norms = sorted(float(value) for name, value in row.items() if name.startswith("head_"))
    left = sum(norm > 1e-6 * norms[-1] for norm in norms)
    return f"accuracy {row['accuracy']}, {left} heads left, smallest {norms[0]:.1e}, {row['cpu_seconds']} s"


if __name__ == "__main__":
    main()
