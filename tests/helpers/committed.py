"""Copies of the committed project, in git repositories of their own, driven from the shell."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stages.params.yamlfile import read_yaml, yaml_text

ROOT = Path(__file__).parents[2]
FROM_SOLVE = {"solve", "assemble", "compare_attention", "measure_speed", "evaluate", "report"}
EVERY_STAGE = {"fetch", "extract", "statistics", "evaluate_dense", *FROM_SOLVE}
WORDS = ["<unk>", *(f"word{number}" for number in range(95))]
CHEAP: dict[str, Any] = {
    "fetch": {
        "model": {"source": "local", "path": "../source/model"},
        "calibration": {"source": "local", "path": "../source/calibration.jsonl"},
        "evaluation": {"source": "local", "path": "../source/evaluation.jsonl", "label_column": "topic"},
    },
    "calibration": {"sequences": 4, "length": 16},
    "evaluate": {
        "attention": {"sequences": 2, "length": 16},
        "perplexity": {"window": 16, "stride": 16, "windows": 4},
        "tasks": {"names": []},
        "speed": {"prompt": 8, "generate": 4, "repeats": 1, "warmup": 0},
    },
}
"""Settings with which a stage takes little longer than its start: a model of two blocks, made-up texts, no tasks."""


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with `changes` laid over them, section by section; what has a source of its own is replaced."""
    merged = dict(values)
    for key, value in changes.items():
        deep = isinstance(value, dict) and key in merged and "source" not in value
        merged[key] = merge(merged[key], value) if deep else value
    return merged


def outcomes_in(output: str) -> dict[str, str]:
    """The outcome of each stage, as `python -m flows.pipeline` tells it."""
    return dict(re.findall(r"^(\w+) +(Skipped|Restored|Ran) +[\d.]+ s$", output, re.MULTILINE))


class Project:
    """A folder in git and DVC: `sh` runs a command there, `repro` tells which stages ran."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **(environment or {**os.environ, "PATH": path}),
            "PYTHONPATH": str(folder),
            "DVC_NO_ANALYTICS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@localhost",
            "GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@localhost",
        }  # fmt: skip

    def start(self, *command: str, output: int = subprocess.PIPE, forked: bool = True) -> subprocess.Popen[str]:
        """Start a command, its output and errors together in a pipe (which must be read) or where it is told.

        forked: may be false for one whose signals must reach the processes that it starts, too.
        """
        environment = {**self.environment, "PWD": str(self.folder)}
        if not forked:
            environment.pop("SECATEUR_FORKS", None)
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )

    def sh(self, *command: str, code: int = 0) -> str:
        """Output of a command, which must end with this exit code."""
        process = self.start(*command)
        output = process.communicate()[0]
        assert process.returncode == code, f"{' '.join(command)} gave {process.returncode}:\n{output[-4000:]}"
        return output

    def flow(self, module: str, *arguments: str, code: int = 0) -> str:
        """Output of `python -m flows.<module>`."""
        return self.sh("python", "-m", f"flows.{module}", *arguments, code=code)

    def repro(self, *arguments: str, command: str = "repro") -> list[str]:
        """Run `dvc repro` (or another command that runs stages); the stages that ran, in order."""
        output = self.sh("dvc", *command.split(), *arguments)
        return re.findall(r"Running stage '([a-z_]+)'", output)

    def change(self, **sections: Any) -> None:
        """Lay `sections` over params.yaml."""
        path = self.folder / "params.yaml"
        values = merge(read_yaml(path), sections)
        path.write_text(yaml_text(values), encoding="utf-8")

    def commit(self, message: str) -> None:
        self.sh("git", "add", "-A")
        self.sh("git", "commit", "--quiet", "--allow-empty", "-m", message)


def copied(folder: Path, environment: dict[str, str] | None = None) -> Project:
    """The committed files (and those that a commit would add) in `folder`, which becomes a git repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if ((ROOT / name).is_file() or (ROOT / name).is_symlink()) and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    made = Project(folder, environment)
    made.sh("git", "init", "--quiet")
    return made


def save_source(folder: Path) -> None:
    """A random Llama of two blocks with a tokenizer of whole words, and two texts of labelled documents."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=0, eos_token_id=1, max_position_embeddings=64, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder / "model")
    draw = random.Random(0)
    for name in ("calibration", "evaluation"):
        rows = [{"text": " ".join(draw.choices(WORDS[1:], k=40)), "topic": topic} for topic in 20 * ["sport", "tech"]]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
