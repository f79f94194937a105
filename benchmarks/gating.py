"""Time and memory that D-gating adds to a training step.

    python benchmarks/gating.py [--models paper block] [--texts 4 8 32] [--repeats 15] [--width 768] [--heads 12]

Steps of SGD with momentum 0.9 on texts of 128 tokens, float32, one thread: `paper` is an embedding, multi-head
attention with its heads as groups, the mean and a linear; `block` is a transformer block with heads and channels as
groups. Steps of all kinds take turns, so that a slow minute hits them alike; seconds are the least of all repeats, of
this process. Memory is what a step adds at its peak, each in a process of its own (Linux), and the numbers that
parameters and buffers hold more than before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

from stages.gating.baselines import GroupLasso
from stages.gating.gate import gate
from stages.gating.groups import Groups, units
from stages.gating.slices import EvenSlices
from stages.models.loading.memory import peak_memory_mb, return_freed_memory

KINDS = {
    "plain": "no penalty",
    "decay": "gated, the penalty as weight decay",
    "decay3": "gated, D = 3, the penalty as weight decay",
    "gated": "gated, the penalty in the loss",
    "naive": "no gates, λ Σ ‖w_h‖ in the loss",
}
MODELS, LENGTH, VOCABULARY = ("paper", "block"), 128, 4096


class Paper(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, sparse=True)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.classify = nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.classify(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, sparse=True)
        self.layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.classify = nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(self.layer(self.embedding(tokens)).mean(1))


def families(model: nn.Module, heads: int) -> list[Groups]:
    attention = "attention" if isinstance(model, Paper) else "layer.self_attn"
    stacked = (EvenSlices(f"{attention}.in_proj_{part}", repeats=3) for part in ("weight", "bias"))
    found = [Groups(heads, (*stacked, EvenSlices(f"{attention}.out_proj.weight", 1)))]
    if isinstance(model, Block):
        rows = ["layer.linear1.weight", "layer.linear1.bias"]
        found.append(units(model.layer.linear1.out_features, rows, ["layer.linear2.weight"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=MODELS)
    parser.add_argument("--texts", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--peak", nargs=2, metavar=("MODEL", "KIND"), help="only the peak of a step, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print(peak(*options.peak, options))
        return
    for name in options.models:
        print(table(name, options), flush=True)


def table(name: str, options: argparse.Namespace) -> str:
    """Markdown: ms of the plain step and the extra time of the others, by texts a step; memory."""
    head = " | ".join(f"{texts} texts" for texts in options.texts)
    lines = [f"| {name} | {head} | peak of a step, MB | numbers held |", "|---" * (len(options.texts) + 3) + "|"]
    times = {texts: timed(name, texts, options) for texts in options.texts}
    held = {kind: numbers(made(name, kind, 1, options)[0]) for kind in KINDS}
    for kind, title in KINDS.items():
        cells = [
            f"{1e3 * found[kind]:.1f} ms" if kind == "plain" else f"{found[kind] / found['plain'] - 1:+.1%}"
            for found in times.values()
        ]
        command = [sys.executable, __file__, "--peak", name, kind, "--texts", str(options.texts[-1])]
        command += ["--width", str(options.width), "--heads", str(options.heads)]
        cells.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        cells.append(str(held[kind]) if kind == "plain" else f"{held[kind] - held['plain']:+d}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def made(name: str, kind: str, texts: int, options: argparse.Namespace) -> tuple[nn.Module, Callable[[], None]]:
    """A model of this kind, and its training step."""
    torch.manual_seed(0)
    model = (Paper if name == "paper" else Block)(options.width, options.heads)
    tokens, labels = torch.randint(VOCABULARY, (texts, LENGTH)), torch.randint(5, (texts,))
    embedding, penalty = model.embedding.weight, None
    groups = [{"params": list(model.parameters())}]
    if kind == "naive":
        lasso = GroupLasso(model, families(model, options.heads))
        penalty = lasso.penalty
    elif kind != "plain":
        gating = gate(model, families(model, options.heads), depth=3 if kind == "decay3" else 2)
        groups = gating.parameter_groups(strength=0.0 if kind == "gated" else 0.01)
        penalty = gating.penalty if kind == "gated" else None
    for group in groups:
        group["params"] = [one for one in group["params"] if one is not embedding]
    optimizers = [torch.optim.SGD(groups, lr=0.01, momentum=0.9), torch.optim.SGD([embedding], lr=0.01)]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        (loss if penalty is None else loss + penalty(0.01)).backward()
        for optimizer in optimizers:
            optimizer.step()

    return model, step


def timed(name: str, texts: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step by kind."""
    steps = {kind: made(name, kind, texts, options)[1] for kind in KINDS}
    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(options.repeats):
        for kind, step in steps.items():
            before = time.process_time()
            step()
            best[kind] = min(best[kind], time.process_time() - before)
    return best


def numbers(model: nn.Module) -> int:
    return sum(one.numel() for one in (*model.parameters(), *model.buffers()))


def peak(name: str, kind: str, options: argparse.Namespace) -> str:
    """MB that the third step adds to what is in memory before it."""
    _, step = made(name, kind, options.texts[-1], options)
    step()
    step()
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak_memory_mb()
    step()
    return f"{peak_memory_mb() - before:.0f}"


if __name__ == "__main__":
    main()
