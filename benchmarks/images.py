"""Seconds and memory of drawing images with a key-value cache, without one, and by LlamaGen's own code.

    git clone https://github.com/FoundationVision/LlamaGen PUBLIC
    python benchmarks/images.py [--public PUBLIC] [--size B] [--images 2] [--repeats 3] [--skip none static] \\
        [--write FILE]

A class-conditional LlamaGen of random weights draws the codes of `--images` images at once, 256 each, guided (scale
1.75, so twice as many sequences), all 16,384 codes, temperature 1. With --public its own Transformer makes the weights,
which are converted as `stages.models.importing.llamagen` converts published ones, so that both draw from one model with
the same random numbers; its `generate` runs as it is, in the dtype of the others and uncompiled. Ways take turns, and
seconds are the least of the repeats: of this process's CPU on a CPU (one thread), else of the clock. Memory is the peak
while drawing in a process of its own for each way, above what it held before it loaded the model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from stages.models.classes.modeling_llamagen import LlamaGenConfig, LlamaGenForImageGeneration
from stages.models.importing.llamagen_transformer import PublicTransformer
from stages.models.loading.compute import synchronize
from stages.models.loading.load import load_model
from stages.models.loading.memory import peak_memory_mb, return_freed_memory

WAYS = {
    "cache": ("with a cache", {}),
    "static": ("with a static cache", {"cache_implementation": "static"}),
    "none": ("without a cache", {"use_cache": False}),
    "public": ("LlamaGen's own code, with its cache", {}),
}
SIZES = {"small": (6, 384, 6), "B": (12, 768, 12), "L": (24, 1024, 16), "XXL": (48, 1536, 24)}
"""Blocks, width and heads."""
CODES, CLASSES, ROWS, SCALE = 256, 1000, 16384, 1.75
PUBLIC_FILE, CONVERTED = "public.pt", "model"
Draw = Callable[[], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, help="a checkout of LlamaGen's repository; without it, ours alone")
    parser.add_argument("--size", choices=SIZES, default="B")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--skip", choices=WAYS, nargs="+", default=[])
    parser.add_argument("--write", type=Path, help="a file for the table, with this command")
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "FOLDER"), help="only the peak of a way, in this process")
    options = parser.parse_args()
    if options.public and not (options.public / "autoregressive").is_dir():
        parser.error(f"--public: {options.public} holds no folder autoregressive: expected a checkout of LlamaGen")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # LlamaGen chooses its attention kernel by a name that torch is about to drop
    if options.peak:
        print(peak(options, *options.peak))
        return
    skipped = {*options.skip, *(() if options.public else ("public",))}
    ways = [way for way in WAYS if way not in skipped]
    with tempfile.TemporaryDirectory() as folder:
        make(options, Path(folder))
        measured = table(options, ways, Path(folder))
    print(measured)
    if options.write:
        options.write.write_text(
            f"python benchmarks/images.py {' '.join(sys.argv[1:])}\n\n{measured}\n", encoding="utf-8"
        )


def make(options: argparse.Namespace, folder: Path) -> None:
    """Write a random model to `folder`: of the public class, converted, or of ours."""
    blocks, width, heads = SIZES[options.size]
    torch.manual_seed(0)
    if options.public is None:
        channels = 256 * -(-(8 * width // 3) // 256)
        config = LlamaGenConfig(
            vocab_size=ROWS, num_classes=CLASSES, max_position_embeddings=1 + CODES, hidden_size=width,
            intermediate_size=channels, num_hidden_layers=blocks, num_attention_heads=heads, num_key_value_heads=heads,
        )  # fmt: skip
        LlamaGenForImageGeneration(config).save_pretrained(folder / CONVERTED)
        return
    state = public_transformer(options).state_dict()
    torch.save({"model": state}, folder / PUBLIC_FILE)
    (folder / CONVERTED).mkdir()
    PublicTransformer.read(folder / PUBLIC_FILE, heads, CLASSES).write(folder / CONVERTED, round(CODES**0.5))


def public_transformer(options: argparse.Namespace) -> Any:
    """LlamaGen's own class; the weights of its head, which it makes zero, are random."""
    sys.path.insert(0, str(options.public))
    from autoregressive.models.gpt import ModelArgs, Transformer

    blocks, width, heads = SIZES[options.size]
    sizes = {"n_layer": blocks, "dim": width, "n_head": heads, "block_size": CODES, "vocab_size": ROWS}
    model = Transformer(ModelArgs(**sizes, num_classes=CLASSES)).eval().requires_grad_(False)
    torch.nn.init.normal_(model.output.weight, std=0.02)
    return model


def drawing(options: argparse.Namespace, way: str, folder: Path, loaded: dict[str, Any]) -> Draw:
    """A function that draws the images in a way. loaded: models by their class, filled here."""
    labels = torch.arange(options.images, device=options.device)
    kind = "public" if way == "public" else "ours"
    if kind not in loaded:
        loaded[kind] = (load_public if kind == "public" else load_ours)(options, folder)
    model = loaded[kind]

    def draw() -> Tensor:
        torch.manual_seed(0)
        if way != "public":
            return model.generate(class_labels=labels, guidance_scale=SCALE, **WAYS[way][1])
        from autoregressive.models.generate import generate

        return generate(model, labels, CODES, cfg_scale=SCALE, temperature=1.0, top_k=0, top_p=1.0, sample_logits=True)

    return draw


def load_ours(options: argparse.Namespace, folder: Path) -> Any:
    return load_model(folder / CONVERTED, options.dtype, options.device)


def load_public(options: argparse.Namespace, folder: Path) -> Any:
    model = public_transformer(options)
    state = torch.load(folder / PUBLIC_FILE, weights_only=True, mmap=True)["model"]
    model.load_state_dict(state, assign=True)
    return model.to(options.device, getattr(torch, options.dtype))


def table(options: argparse.Namespace, ways: list[str], folder: Path) -> str:
    """Markdown: seconds an image, how many times those with a cache, peak memory, the share of equal codes."""
    loaded: dict[str, Any] = {}
    draws = {way: drawing(options, way, folder, loaded) for way in ways}
    codes, best = dict[str, Tensor](), dict.fromkeys(ways, float("inf"))
    for _ in range(options.repeats):
        for way, draw in draws.items():
            before = seconds(options.device)
            codes[way] = draw().cpu()
            best[way] = min(best[way], (seconds(options.device) - before) / options.images)
    parameters = sum(weight.numel() for weight in loaded["ours"].parameters())
    lines = [
        f"{options.size}, {parameters / 1e6:.0f} million parameters, {options.images} at once, {CODES} codes each, "
        f"{options.dtype}, {options.device}, torch {torch.__version__}\n",
        "| way | seconds an image | times those with a cache | peak memory, MB | codes as with a cache |",
        "|---|---|---|---|---|",
    ]
    for way in ways:
        same = (codes[way] == codes["cache"]).double().mean()
        memory = measured_peak(options, way, folder)
        cells = [f"{best[way]:.2f}", f"{best[way] / best['cache']:.2f}", memory, f"{same:.1%}"]
        lines.append(f"| {WAYS[way][0]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seconds(device: str) -> float:
    """CPU seconds of this process, or on another device those of the clock, when its work is done."""
    if device == "cpu":
        return time.process_time()
    synchronize(torch.device(device))
    return time.perf_counter()


def measured_peak(options: argparse.Namespace, way: str, folder: Path) -> str:
    """`peak` in a process of its own."""
    command = [sys.executable, __file__, "--peak", way, str(folder), "--size", options.size, "--dtype", options.dtype]
    command += ["--images", str(options.images), "--device", options.device]
    command += ["--public", str(options.public)] if options.public else []
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]


def peak(options: argparse.Namespace, way: str, folder: str) -> int:
    """MB (2²⁰ bytes) of the loaded model and of drawing once, at their peak (Linux)."""
    before = peak_memory_mb()
    draw = drawing(options, way, Path(folder), {})
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    draw()
    if options.device != "cpu":
        return torch.cuda.max_memory_allocated(options.device) // 2**20
    return peak_memory_mb() - before


if __name__ == "__main__":
    main()
