"""A small good project, as a user has it after `dvc repro`, and the two ways to run a command in a copy of it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from tests.bad_input.case import Limits
from tests.helpers.committed import ROOT
from tests.helpers.forks.server import Request, limit
from tests.helpers.forks.start import ForkServer
from tests.helpers.tiny import VOCABULARY, tiny_model

SECONDS = 120
STAGES = (
    "fetch", "extract", "statistics", "solve", "assemble", "compare_attention", "measure_speed", "evaluate dense",
    "evaluate pruned", "report",
)  # fmt: skip
WORDS = ["<unk>", "<end>", *(f"word{number}" for number in range(2, VOCABULARY))]
PARAMS = """\
# A project of a tiny model.
compute: {device: cpu, dtype: auto, chunk: 4}

fetch:
  model: {source: local, path: source/model}
  calibration: {source: local, path: source/calibration.jsonl, label_column: topic}
  evaluation: {source: local, path: source/evaluation.jsonl, label_column: topic}

calibration:
  sequences: 12
  length: 16
  seed: 0

extract: {format: safetensors}
statistics: {dtype: float32}

solve:
  method: wanda
  sparsity: 0.5
  pattern: unstructured
  rules: []

methods:
  wanda:
    activation_power: 1.0
  admm:
    iterations: 10

assemble: {layout: auto}

evaluate:
  perplexity: {window: 16, stride: 16}
  tasks: {names: [], limit: 4, max_length: 32}
  attention: {sequences: 2, length: 16}
  images: {count: 0, guidance_scale: 1.75, guided_codes: null, temperature: 1, top_k: 0, top_p: 1}
  speed: {prompt: 8, generate: 4, repeats: 1}

store: {limit_gb: 1}
workers: {runner: threads, count: 1}
"""
TASK = """\
task: topics
dataset_path: parquet
dataset_kwargs:
  data_files: {test: data/texts/evaluation_documents.parquet}
  cache_dir: .cache/datasets
test_split: test
output_type: multiple_choice
doc_to_text: "{{ text }}"
doc_to_choice: [word2, word3]
doc_to_target: "{{ {'a': 0, 'b': 1}[label] }}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata: {version: 1.0}
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Shell(Protocol):
    """Runs `python -m COMMAND` in a folder."""

    def run(self, command: str, folder: Path, environment: Mapping[str, str], limits: Limits) -> Ended: ...


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of a command in a project: this Python first, no telemetry, nothing of the caller's Prefect."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DVC_", "PYTEST_"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PWD": str(folder),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / ".cache/datasets"),
        "GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@localhost",
        "GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@localhost",
    }  # fmt: skip


class RealShell:
    """`bash -c 'exec python -m COMMAND'`: seconds each."""

    def run(self, command: str, folder: Path, environment: Mapping[str, str], limits: Limits) -> Ended:
        """Run it, under the limits."""
        ended = subprocess.run(
            ["bash", "-c", f"exec python -m {command}"], cwd=folder, env=dict(environment), capture_output=True,
            text=True, errors="replace", check=False, stdin=subprocess.DEVNULL, timeout=SECONDS,
            preexec_fn=partial(limit, **asdict(limits)), start_new_session=True,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)


class ForkShell:
    """The same code in forks of a process that has imported it: a fraction of a second each."""

    def __init__(self, server: ForkServer, home: Path) -> None:
        self._server, self._home = server, home

    def run(self, command: str, folder: Path, environment: Mapping[str, str], limits: Limits) -> Ended:
        """Run it, under the limits."""
        module, *arguments = shlex.split(command)
        out, err = self._home / "stdout", self._home / "stderr"
        request: Request = {
            "module": module, "arguments": arguments, "executable": sys.executable, "folder": str(folder),
            "environment": dict(environment), "files": [0, 1, 2], "ignored": [], "umask": 0o22,
            "limits": asdict(limits), "seconds": SECONDS,
        }  # fmt: skip
        with Path(os.devnull).open() as nothing, out.open("w") as to_out, err.open("w") as to_err:
            code = self._server.run(request, [file.fileno() for file in (nothing, to_out, to_err)])
        return Ended(code, *(path.read_text(encoding="utf-8", errors="replace") for path in (out, err)))


def make_project(folder: Path, shell: Shell) -> None:
    """Write the sources and run all stages."""
    tiny_model("llama").save_pretrained(folder / "source/model")
    save_tokenizer(folder / "source/model", eos_token=WORDS[1])
    draw = random.Random(0)
    for name, count in (("calibration", 40), ("evaluation", 20)):
        rows = [{"text": " ".join(draw.choices(WORDS[2:], k=20)), "topic": "ab"[n % 2]} for n in range(count)]
        (folder / f"source/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (folder / "params.yaml").write_text(PARAMS, encoding="utf-8")
    (folder / "tasks").mkdir()
    (folder / "tasks/topics.yaml").write_text(TASK, encoding="utf-8")
    for stage in STAGES:
        ended = shell.run(f"stages.{stage}", folder, environment_of(folder), Limits())
        assert ended.code == 0, f"{stage}: {ended.err}"


def save_tokenizer(folder: Path, **special: str) -> None:
    """A tokenizer of a word a token, with these special tokens."""
    words = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special).save_pretrained(folder)


def put_under_dvc(folder: Path) -> None:
    """Make a project that has run one whose results DVC and git know."""
    shutil.copy2(ROOT / "dvc.yaml", folder)
    shutil.copytree(ROOT / "stages", folder / "stages")
    (folder / ".gitignore").write_text(".cache/\n__pycache__/\n", encoding="utf-8")
    shutil.copy2(ROOT / ".dvcignore", folder)
    for command in (
        ("git", "init", "--quiet"), (sys.executable, "-m", "dvc", "init", "--quiet"),
        (sys.executable, "-m", "dvc", "commit", "--force", "--quiet"), ("git", "add", "-A"),
        ("git", "commit", "--quiet", "-m", "project"),
    ):  # fmt: skip
        ended = subprocess.run(command, cwd=folder, env=environment_of(folder), capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


def copy_project(project: Path, folder: Path) -> None:
    """A copy whose large folders hold links: what changes a file there must write a new one (see case.fresh)."""

    def link_results(source: str, target: str) -> None:
        linked = Path(source).relative_to(project).parts[0] in ("data", ".cache", "metrics")
        os.link(source, target) if linked else shutil.copy2(source, target)

    shutil.copytree(project, folder, copy_function=link_results, symlinks=True)


def results_of(folder: Path) -> dict[str, str]:
    """sha256 of every file of the stages' outputs, by path; folders too, so that no leftover is missed."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for place in ("data", "metrics")
        for path in sorted((folder / place).rglob("*"))
    }
