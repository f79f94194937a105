"""Peak memory of extract, statistics and solve: it grows with the block, not with the number of blocks.

    python benchmarks/memory.py FOLDER

Random Llama models of several depths and widths, 32 sequences of 256 tokens, SparseGPT on pruned inputs. The
floor is what the interpreter and the libraries take before any work (a process that only imports them).
"whole" is what the weights in float32 plus the hidden states entering all blocks would take.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages.artifacts.manifest import write_manifest
from stages.params.yamlfile import read_yaml, yaml_text

ROOT = Path(__file__).parents[1]
SHAPES = [(8, 512), (16, 512), (32, 512), (8, 1024), (8, 1536)]
SEQUENCES, LENGTH, VOCABULARY = 32, 256, 1024
STAGES = ("extract", "statistics", "solve")
IMPORTS = (
    "import stages.solve, stages.extract, transformers.models.llama.modeling_llama, pyarrow.parquet;"
    "from stages.models.loading.memory import peak_memory_mb; print(peak_memory_mb())"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    print(f"floor: {python('-c', IMPORTS, folder=ROOT).strip()} MB")
    print("| blocks | width | block MB | whole MB | extract | statistics | solve |\n|---|---|---|---|---|---|---|")
    for blocks, width in SHAPES:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "data").mkdir(parents=True)
        parameters = make(folder, blocks, width)
        hidden = SEQUENCES * LENGTH * width * blocks
        peaks = [peak(folder, stage) for stage in STAGES]
        block = (parameters - 2 * VOCABULARY * width) / blocks * 4 / 1e6
        whole = 4 * (parameters + hidden) / 1e6
        print(f"| {blocks} | {width} | {block:.0f} | {whole:.0f} | {' | '.join(map(str, peaks))} |", flush=True)
    shutil.rmtree(folder)


def make(folder: Path, blocks: int, width: int) -> int:
    """Write params.yaml, data/model and data/texts; gives the number of parameters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=blocks,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, dtype="float32",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "data/model")
    write_manifest(folder / "data/model", {"source": {}})
    texts, facts = folder / "data/texts", {}
    texts.mkdir()
    for name in ("calibration", "evaluation"):
        ids = torch.randint(3, VOCABULARY, (4 * SEQUENCES * LENGTH,), dtype=torch.int32)
        pq.write_table(pa.table({"token": ids.numpy()}), texts / f"{name}.parquet")
        facts[name] = {"name": "random", "sha256": ""}
    write_manifest(texts, facts)
    settings = read_yaml(ROOT / "params.yaml")
    settings["calibration"] = {"sequences": SEQUENCES, "length": LENGTH}
    (folder / "params.yaml").write_text(yaml_text(settings), encoding="utf-8")
    return sum(parameter.numel() for parameter in model.parameters())


def peak(folder: Path, stage: str) -> int:
    """Peak resident memory of a stage, MB."""
    python("-m", f"stages.{stage}", folder=folder)
    cost = json.loads((folder / f"metrics/cost/{stage}.json").read_text(encoding="utf-8"))
    return int(cost["peak_memory_mb"])


def python(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return ended.stdout


if __name__ == "__main__":
    main()
