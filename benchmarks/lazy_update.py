"""CPU seconds of the SparseGPT solver against the lazy width B, the columns after which all later ones are updated.

    python benchmarks/lazy_update.py [--quick] [--sizes 256 512 1024 2048] [--csv FILE]

One linear of d x d weights, a random correlated Gram matrix, 50 % unstructured, float32, one thread. Masks are
chosen 128 columns together whatever B is, so that every B gives the same result. Seconds are the least of
`--repeats` runs: processor time of this process, or device time where `--device cuda` is asked for. Memory is what
a run adds at its peak (on the CPU: Linux only). d = 4096 comes only when asked for: --sizes 4096.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from stages.linalg.factor import inverse_factor
from stages.methods.linear.contract import Budget, LinearProblem
from stages.methods.linear.sparsegpt import SparseGpt, lazy_width
from stages.models.loading.memory import peak_memory_mb, return_freed_memory

COLUMNS = ("d", "lazy", "seconds", "factor_seconds", "peak_mb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="only d = 256 and 512")
    parser.add_argument("--csv", type=Path, help="write the figures here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [256, 512] if options.quick else options.sizes
    rows = [row for d in sizes for row in measure(d, options.widths, options.repeats, torch.device(options.device))]
    print(table(rows))
    if options.csv is not None:
        write(options.csv, rows)


def measure(d: int, widths: list[int], repeats: int, device: torch.device) -> Iterator[dict[str, float]]:
    """One row for each width up to d; runs of all widths take turns, so that a slow minute hits them alike."""
    problem, budget = make_problem(d, device), Budget(0.5)
    widths = [width for width in widths if width <= d]
    SparseGpt(lazy=widths[-1])(problem, budget)  # compiles
    best, factor = dict.fromkeys(widths, float("inf")), float("inf")
    peaks = {}
    for _ in range(repeats):
        factor = min(factor, seconds(lambda: inverse_factor(problem.gram, 0.01), device))
        for width in widths:
            solver = SparseGpt(lazy=width)
            start_memory(device)
            before = memory_mb(device)
            best[width] = min(best[width], seconds(lambda solver=solver: solver(problem, budget), device))
            peaks[width] = memory_mb(device) - before
    for width in widths:
        yield dict(zip(COLUMNS, (d, width, best[width], factor, peaks[width]), strict=True))


def make_problem(d: int, device: torch.device) -> LinearProblem:
    """d x d weights under inputs that are mixed with each other and of sizes from 1 to e³."""
    generator = torch.Generator().manual_seed(d)
    mix = torch.randn(d, d, generator=generator) / d**0.5 + 0.3 * torch.eye(d)
    x = torch.randn(2 * d, d, generator=generator) @ mix * torch.rand(d, generator=generator).mul(3).exp()
    target = torch.randn(d, d, generator=generator)
    gram, mean = x.T @ x / len(x), x.mean(0)
    return LinearProblem(target.to(device), gram.to(device), mean.to(device), len(x), (d,))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    before = time.process_time()
    run()
    return time.process_time() - before


def start_memory(device: torch.device) -> None:
    """Begin a new high-water mark."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        return_freed_memory()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else peak_memory_mb()


def table(rows: list[dict[str, float]]) -> str:
    """Markdown: a row for each width, its time over that of the fastest for each d, and peak memory."""
    sizes, widths = sorted({row["d"] for row in rows}), sorted({row["lazy"] for row in rows})
    of = {(row["d"], row["lazy"]): row for row in rows}
    best = {d: min(row["seconds"] for row in rows if row["d"] == d) for d in sizes}
    lines = ["| B | " + " | ".join(f"d = {d}" for d in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for width in widths:
        cells = [
            f"{r['seconds'] / best[d]:.2f}, {r['peak_mb']:.0f} MB" if (r := of.get((d, width))) else "" for d in sizes
        ]
        lines.append(f"| {width} | " + " | ".join(cells) + " |")
    lines.append("| 1.00 is, s | " + " | ".join(f"{best[d]:.4f}" for d in sizes) + " |")
    lines.append("| factor alone, s | " + " | ".join(f"{of[d, widths[0]]['factor_seconds']:.4f}" for d in sizes) + " |")
    lines.append("| `auto` takes B | " + " | ".join(str(lazy_width(int(d))) for d in sizes) + " |")
    return "\n".join(lines)


def write(path: Path, rows: list[dict[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
