"""Perplexity, CPU seconds and memory of methods, by one protocol, through the pipeline's own stages.

    python benchmarks/quality.py FOLDER --calibration CALIBRATION.txt --evaluation EVALUATION.txt \\
        --run "sparsegpt 0.5 refit=cg" --run "wanda 2:4"

FOLDER is a scratch workspace, kept. The model is the one of params.yaml, in its own dtype unless `--dtype` has it
stored and run in another (the default model's is float32); so are the texts, unless given. Calibration: 32 windows of
512 tokens (`--seed`); evaluation: the first 40 windows of 512 tokens, side by side, no BOS; `<unk>` is read as `unk`;
pruned inputs; all linears of all blocks.

A run is a method, a sparsity or N:M, and settings: of `solve` (walk=block, target=dense, refit=cg, ...), or of
the method with a colon before it (:tile=64); settings in settings are JSON (units={"multiple":64}). `--also` measures
on further texts. One thread, so that CPU seconds are work and not waiting; two of these can run side by side on two
cores.

Several `--chunks` repeat everything with another grouping of the same sequences, which changes nothing but
the order of additions: the scatter of the perplexity is the resolution of such a comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages.params.yamlfile import parse_yaml, read_yaml, yaml_text

ROOT = Path(__file__).parents[1]
WINDOW = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibration", type=Path, help="a text file; else the texts of params.yaml")
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--run", action="append", dest="runs", required=True, metavar="METHOD AMOUNT [SETTING=VALUE]")
    parser.add_argument("--also", action="append", type=Path, default=[], metavar="TEXT")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the model, stored and computed")
    parser.add_argument("--short", type=int, metavar="TOKENS", help="measure in windows of so many tokens too")
    parser.add_argument("--masked", action="store_true", help="measure the masked dense model, write no checkpoint")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunks", default="8")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for chunk in map(int, options.chunks.split(",")):
        settings = settings_of(options, chunk)
        bench = Bench(options.folder, settings, options.threads, options.also, options.short, options.masked)
        bench.prepare()
        if "dense" not in results:
            bench.stage("evaluate", "dense")
            results["dense"] = [bench.measured("dense")]
        for run in options.runs:
            results.setdefault(run, []).append(bench.prune(run))
            print(run, "chunk", chunk, results[run][-1], file=sys.stderr, flush=True)
    print(table(results, options.also))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def settings_of(options: argparse.Namespace, chunk: int) -> dict[str, Any]:
    """params.yaml for the protocol."""
    settings: dict[str, Any] = read_yaml(ROOT / "params.yaml")
    for name in ("calibration", "evaluation"):
        path = getattr(options, name)
        if path is not None:
            text = {"source": "local", "replace": {"<unk>": "unk"}}
            settings["fetch"][name] = {**text, "path": str(path.resolve())}
    if options.dtype is not None:
        settings["fetch"]["model"]["dtype"] = options.dtype
    settings["compute"] = {"device": "auto", "dtype": "auto", "chunk": chunk}
    settings["calibration"] = {"sequences": options.sequences, "length": WINDOW, "seed": options.seed}
    protocol = {"window": WINDOW, "stride": WINDOW, "bos": False, "windows": options.windows}
    settings["evaluate"] = {"perplexity": protocol, "tasks": {"names": []}}
    return settings


class Bench:
    """A workspace in which runs share what does not depend on them."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        threads: int,
        also: list[Path],
        short: int | None = None,
        masked: bool = False,
    ) -> None:
        self.folder, self.settings, self.threads, self.also = folder, settings, threads, also
        self.short, self.masked = short, masked

    def prepare(self) -> None:
        """fetch, extract and statistics, unless this folder has them for the same settings."""
        self.write(self.settings)
        done, wanted = self.folder / "prepared.yaml", yaml_text(self.settings)
        if done.exists() and done.read_text(encoding="utf-8") == wanted:
            return
        for name in ("fetch", "extract", "statistics"):
            self.stage(name)
        done.write_text(wanted, encoding="utf-8")

    def prune(self, run: str) -> dict[str, Any]:
        """Solve, assemble and measure one run."""
        method, amount, *options = run.split()
        solve: dict[str, Any] = {"method": method, "sparsity": 0.5, "inputs": "pruned"}
        solve |= {"pattern": amount, "sparsity": None} if ":" in amount else {"sparsity": float(amount)}
        own = dict(self.settings["methods"].get(method, {}))
        for name, _, value in (option.partition("=") for option in options):
            target = own if name.startswith(":") else solve
            target[name.removeprefix(":")] = parse_yaml(value, name)
        self.write({**self.settings, "solve": solve, "methods": {method: own}})
        self.stage("solve")
        cost = json.loads((self.folder / "metrics/cost/solve.json").read_text(encoding="utf-8"))
        if not self.masked:
            self.stage("assemble")
            self.stage("evaluate", "pruned")
        figures = {} if cost["blocks_restored"] else cost
        return {**self.measured("masked" if self.masked else "pruned"), **{name: figures.get(name) for name in COSTS}}

    def measured(self, which: str) -> dict[str, Any]:
        """Perplexity on the evaluation text, and on the further ones."""
        windows = [WINDOW] if self.short is None else [WINDOW, self.short]
        if which == "masked" or self.short is not None:
            value, *short = self.perplexities(which, None, windows)
        else:
            metrics = json.loads((self.folder / f"metrics/{which}.json").read_text(encoding="utf-8"))
            value, short = metrics["perplexity"]["value"], []
        also = [self.perplexities(which, text, [WINDOW])[0] for text in self.also]
        return {"perplexity": float(value), "also": also, **({"short": short[0]} if short else {})}

    def perplexities(self, which: str, text: Path | None, windows: list[int]) -> list[float]:
        """By the same protocol on another text, or in windows of other lengths of the evaluation text."""
        tokens = self.settings["evaluate"]["perplexity"]["windows"] * WINDOW
        told = [None if text is None else str(text.resolve()), which, tokens, windows]
        code = f"text, which, length, windows = {told!r}\n{MEASURE}"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=self.environment(), check=True, capture_output=True
        )
        return [float(value) for value in done.stdout.split()]

    def stage(self, *command: str) -> None:
        """Run one stage in the workspace."""
        line = [sys.executable, "-m", f"stages.{command[0]}", *command[1:]]
        subprocess.run(line, cwd=self.folder, env=self.environment(), check=True)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(self.threads)}

    def write(self, settings: dict[str, Any]) -> None:
        (self.folder / "params.yaml").write_text(yaml_text(settings), encoding="utf-8")


COSTS = ("solver_cpu_seconds", "calibration_cpu_seconds", "cpu_seconds", "peak_memory_mb")
MEASURE = """
from pathlib import Path
import torch
from stages.artifacts.manifest import read_manifest
from stages.artifacts.tokens import read_tokens
from stages.measuring.quality.perplexity import perplexity
from stages.measuring.quality.windows import windows_of
from stages.models.loading.load import load_model, load_tokenizer
from stages.models.streaming.streamed import StreamedModel
from stages.params.evaluating import Perplexity
from stages.artifacts.places import SOLUTION, block_file
from stages.walk.pruned import read_weights
folder = Path('data/pruned' if which == 'pruned' else 'data/model')
if text is None:
    texts = Path('data/texts')
    tokens = read_tokens(texts, 'evaluation', read_manifest(texts))
else:
    words = Path(text).read_text(encoding='utf-8').replace('<unk>', 'unk')
    ids = load_tokenizer(folder, False)(words, add_special_tokens=False, verbose=False)['input_ids']
    tokens = torch.tensor(ids)
model = load_model(folder, 'auto', 'auto', False)
if which == 'masked':
    dense = StreamedModel(folder, torch.device('cpu'))
    for index in range(dense.blocks):
        for name, tensor in read_weights(SOLUTION / block_file(index), dense.linears(index), dense).items():
            module, _, part = name.rpartition('.')
            parameter = torch.nn.Parameter(tensor.to(model.device, model.dtype), requires_grad=False)
            setattr(model.get_submodule(module), part, parameter)
for window in windows:
    protocol = Perplexity(window=window, stride=window, bos=False, windows=length // window)
    print(perplexity(model, tokens, windows_of(protocol, len(tokens)), 4096 // window)['value'])
"""


def table(results: dict[str, list[dict[str, Any]]], also: list[Path]) -> str:
    """A Markdown table: mean and range over the chunks."""
    heads = ["run", "perplexity", "lowest, highest", *(path.name for path in also), *COSTS]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for run, found in results.items():
        values = [one["perplexity"] for one in found]
        span = f"{min(values):.3f}, {max(values):.3f}" if len(values) > 1 else ""
        others = [f"{statistics.mean(one['also'][i] for one in found):.3f}" for i in range(len(also))]
        costs = [f"{found[-1][name]:.1f}" if found[-1].get(name) is not None else "" for name in COSTS]
        lines.append(f"| {' | '.join([run, f'{statistics.mean(values):.3f}', span, *others, *costs])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
