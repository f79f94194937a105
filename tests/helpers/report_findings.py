"""What the stages before the report leave, made up, and the page that it writes of it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from stages import report
from stages.artifacts.atomic import write_json
from stages.artifacts.attention import ATTENTION_ERRORS
from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import sha256_of, write_manifest
from stages.measuring.attention.figures import attention_figures
from stages.runtime.stage import run_stage
from tests.helpers.tiny import write_params

PAGE = Path("data/report/index.html")
ROLES = ("attention.q", "mlp.down")


def write_findings():
    """Fill the working folder with what the other stages leave."""
    write_params(Path())
    for model, value in (("dense", 29.09), ("pruned", 44.07)):
        measured = {"value": value, "tokens": 20440, "windows": 40}
        task = {"acc": value / 100, "acc_stderr": 0.01, "n": 200, "fewshot": 5, "truncated": 0, "tokens_cut": 0}
        write_json(Path(f"metrics/{model}.json"), {"perplexity": measured, "tasks": {"topics": task}})
        protocol = {"perplexity": "a text & how it was cut", "tasks": "lm-eval", "text": {"name": "<news>"}}
        protocol |= {"images": "", "images_left_out": {}}
        write_json(Path(f"data/evaluation/{model}/protocol.json"), protocol)
    for stage, seconds in (("solve", 95.5), ("fetch", 25.0), ("report", 1.0)):
        write_json(Path(f"metrics/cost/{stage}.json"), {"seconds": seconds, "peak_memory_mb": 800})
    write_solution(0.5)
    source = {"source": {"source": "hub", "id": "someone/<model>"}}
    counts = {"sparsity": 0.5, "block_weights": 84_000, "covered": 1.0, "linears": {"sparsity": 0.5}}
    write_json(
        Path("data/pruned/pruning_manifest.json"), {"source": source, "calibration": {"sequences": 16}, **counts}
    )


def tell(**facts):
    """Facts of the pruned checkpoint that are others than the workspace's."""
    path = Path("data/pruned/pruning_manifest.json")
    write_json(path, {**json.loads(path.read_text()), **facts})


def write_solution(sparsity, damping=0.01, attempts=1):
    """What solve leaves: twelve blocks whose error grows with their number."""
    rows = [
        {
            "linear": f"layers.{block}.{role}", "block": block, "role": role, "method": "wanda",
            "pattern": "unstructured", "scope": "row", "weights": 1000, "kept": int(1000 * (1 - sparsity)),
            "sparsity": sparsity, "relative_error": sparsity * (block + 1) / 100,
            "damping": damping, "attempts": attempts,
        }
        for block in range(12)
        for role in ROLES
    ]  # fmt: skip
    folder = Path("data/solution")
    folder.mkdir(parents=True, exist_ok=True)
    LINEARS.write(folder, rows)
    write_manifest(folder, {"solve": {"method": "wanda", "inputs": "pruned"}, "settings": {}})


def write_attention(error=0.1, **told):
    """What compare_attention leaves, made up: block 2 is the worst, held-out errors are twice those of calibration."""
    rows = [
        {
            "text": text, "inputs": inputs, "block": block, "head": head, "energy": 1.0, "least_probability": 1e-9,
            "relative_error": error * (1 + (text == "held_out")) * (1 + (block == 2)) * (1 + (inputs == "own")),
            "smallest_eigenvalue": 0.01 * block,
        }
        for text in ("calibration", "held_out") for inputs in ("dense", "own")
        for block in range(12) for head in range(4)
    ]  # fmt: skip
    rows = [] if told else rows
    folder = Path("data/attention")
    folder.mkdir(parents=True, exist_ok=True)
    ATTENTION_ERRORS.write(folder, rows)
    write_manifest(folder, {"pruned": sha256_of(Path("data/pruned/pruning_manifest.json"))})
    told = told or {"state": "measured", "sequences": 8, "length": 256, **attention_figures(rows)}
    write_json(Path("metrics/attention.json"), told)


def run():
    """Run the stage; gives its exit code."""
    return run_stage("report", report.main, ())


def outputs():
    """Bytes of the files of data/report, by name."""
    return {path.name: path.read_bytes() for path in Path("data/report").rglob("*") if path.is_file()}


class Elements(HTMLParser):
    """Names, attributes and ids of a page; whether its tags close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.remove(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
