"""CPU seconds and peak memory of the methods of the attention matrix on one block, beside plain autograd.

    python benchmarks/attention.py FOLDER [--block 15] [--windows 64,128,256] [--length 256]

FOLDER is a workspace in which fetch has run (benchmarks/quality.py leaves one). Windows of the calibration text,
dense inputs, 50 %, one thread; each row is a process of its own. `autograd` is the descent of attention_iht with the
loss and its gradient by autograd, through whole attention matrices of a batch. The floor are the products alone:
queries, keys, logits and their gradients, at the rate of a product of 1,024 x 1,024 matrices in the same process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from stages.artifacts.manifest import read_manifest
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.linalg.attention import Heads
from stages.methods import registry
from stages.methods.attention import attention_iht
from stages.methods.attention.contract import AttentionProblem
from stages.methods.linear.contract import Budget, LinearProblem
from stages.models.loading.memory import peak_memory_mb
from stages.models.streaming.attention import query_and_key
from stages.models.streaming.streamed import StreamedModel
from stages.solving.linear.attention import attention_problem
from stages.solving.plan import BlockInputs
from stages.walk.forward import advance, write_embeddings
from stages.walk.statistics import collect

WORKS = ("nothing", "autograd", "attention_iht", "attention_gd")
CHUNK = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--block", type=int, default=15)
    parser.add_argument("--windows", default="64,128,256")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--work", choices=WORKS, help="only this, in this process, on states already made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.work:
        print(measured(options.folder, options.block, options.work))
        return
    print("| windows | work | CPU s | over autograd | times the floor | peak memory, MB |\n|---|---|---|---|---|---|")
    for windows in map(int, options.windows.split(",")):
        walk(options.folder, options.block, windows, options.length)
        reference = 0.0
        for work in WORKS:
            arguments = [str(options.folder), "--block", str(options.block), "--work", work]
            line = subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True)
            seconds, floor, memory = map(float, line.stdout.split())
            reference = seconds if work == "autograd" else reference
            over = f"{seconds / reference:.2f}" if reference else ""
            times = f"{seconds / floor:.1f}" if floor else ""
            print(f"| {windows} | {work} | {seconds:.2f} | {over} | {times} | {memory:.0f} |", flush=True)


def walk(folder: Path, block: int, windows: int, length: int) -> None:
    """Write the dense hidden states that enter the block."""
    model, states = StreamedModel(folder / "data/model", torch.device("cpu"), "float32"), states_of(folder)
    tokens = read_tokens(folder / "data/texts", "calibration", read_manifest(folder / "data/texts"))
    write_embeddings(model, sample_windows(tokens, windows, length, 0), states, "safetensors", torch.float32)
    for before in range(block):
        after = states.with_suffix(".next")
        advance(model, before, states, after, CHUNK, "safetensors", torch.float32)
        after.replace(states)


def states_of(folder: Path) -> Path:
    """File of the hidden states."""
    return folder / "attention_states.safetensors"


def measured(folder: Path, block: int, work: str) -> str:
    """CPU seconds, seconds of the floor, peak memory in MB."""
    model, states = StreamedModel(folder / "data/model", torch.device("cpu"), "float32"), states_of(folder)
    with opened(model, block, states) as problem:
        seconds, floor = 0.0, 0.0
        if work != "nothing":
            if work == "autograd":
                attention_iht.squared_error = by_autograd  # type: ignore[assignment]
            solver = registry.load("attention_iht" if work == "autograd" else work)
            registry.load("admm")(problem.linear, Budget(0.5))  # compiles
            begin = time.process_time()
            solver(problem, Budget(0.5))
            seconds, floor = time.process_time() - begin, floor_of(problem, solver.steps)
    return f"{seconds} {floor} {peak_memory_mb()}"


@contextmanager
def opened(model: StreamedModel, block: int, states: Path) -> Iterator[AttentionProblem]:
    """The block's AttentionProblem: q, k and their inputs."""
    pair = query_and_key(model, block)
    dense = torch.cat([model.weights.stored(linear) for linear in pair]).float()
    (one,) = (one for one in collect(model, block, states, CHUNK, torch.float32) if pair[0].name in one.linears)
    linear = LinearProblem(dense, one.gram, one.mean, one.tokens, tuple(linear.shape[0] for linear in pair))
    inputs = BlockInputs(model, block, states, states)
    with attention_problem(inputs, linear, dense, CHUNK, corrected=False) as problem:
        yield problem


def by_autograd(pruned: Heads, dense: Heads) -> Tensor:
    """‖f̃ - f‖² through whole matrices."""
    return (whole(pruned) - whole(dense)).square().sum()


def whole(heads: Heads) -> Tensor:
    """(sequences, heads, n, n)."""
    key = heads.key.repeat_interleave(heads.query.shape[1] // heads.key.shape[1], 1)
    logits = heads.query @ key.mT * heads.scaling
    return torch.softmax(logits if heads.mask is None else logits + heads.mask, -1)


def floor_of(problem: AttentionProblem, steps: int) -> float:
    """Seconds of the products of so many steps: projection and its gradient, both matrices' logits, two gradients."""
    query = problem.fit.dense(0).query
    sequences, heads, n, d_head = query.shape
    projection = 2 * sequences * n * problem.dense.numel()
    logits = 2 * sequences * heads * n * n * d_head
    a = torch.randn(1024, 1024)
    a @ a
    begin = time.process_time()
    for _ in range(10):
        a @ a
    rate = 10 * 2 * 1024**3 / (time.process_time() - begin)
    return steps * (2 * projection + 4 * logits / 2) / rate  # causal: half of every matrix


if __name__ == "__main__":
    main()
