"""Checkpoints loaded in a process of their own, as their users will: logits and text from plain AutoModelForCausalLM.

Run as a script it knows nothing of this package: nothing at the top of this file may import more than the standard
library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = ("stages", "secateur")
Way = Literal["plain", "remote", "imported"]
"""How a checkpoint is loaded: plainly; with trust_remote_code, this package hidden; after `import secateur`."""


@dataclass(frozen=True)
class Job:
    """A generation to run: checkpoint folder, prompt token ids, tokens to generate, and the way to load it."""

    folder: str
    tokens: list[int]
    new_tokens: int
    way: Way
    device: str = "cpu"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Answer:
    """A generation's result. sequence: prompt and generated ids; logits: (length, vocabulary) float32, of all of it."""

    sequence: list[int]
    logits: Tensor


def answers(jobs: Sequence[Job]) -> list[Answer]:
    """Run the jobs in one fresh process and return their answers; `imported` ones run last, since imports stay.

    Raises ValueError with the process's last line where one does not load.
    """
    from safetensors.torch import load_file

    order = sorted(range(len(jobs)), key=lambda place: jobs[place].way == "imported")
    with tempfile.TemporaryDirectory() as folder:
        request, result = Path(folder) / "jobs.json", Path(folder) / "answers.safetensors"
        request.write_text(json.dumps([asdict(jobs[place]) for place in order]), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-I", str(Path(__file__).resolve()), str(request), str(result)],
            capture_output=True, text=True, check=False, cwd=folder,
            env={**os.environ, "HF_MODULES_CACHE": folder, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if done.returncode:
            raise ValueError((done.stderr.strip().splitlines() or ["it died"])[-1])
        tensors = load_file(result)
    places = {place: turn for turn, place in enumerate(order)}
    return [
        Answer(tensors[f"{places[place]}.sequence"].tolist(), tensors[f"{places[place]}.logits"])
        for place in range(len(jobs))
    ]


def _answer(job: dict[str, Any]) -> dict[str, Tensor]:
    """Load a job's checkpoint, generate greedily, and compute the logits of the whole sequence."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model, report = AutoModelForCausalLM.from_pretrained(
        job["folder"],
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=job["way"] == "remote" or job["trust_remote_code"],
        output_loading_info=True,
    )
    wrong = {kind: sorted(names) for kind, names in report.items() if names}
    if wrong:
        raise ValueError(f"{job['folder']}: {wrong}")
    model.eval().to(job["device"])
    tokens = torch.tensor([job["tokens"]], device=job["device"])
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=job["new_tokens"], pad_token_id=0)
    with torch.no_grad():
        sequence = model.generate(tokens, attention_mask=torch.ones_like(tokens))
        logits = model(input_ids=sequence, use_cache=False).logits
    return {"sequence": sequence[0].cpu(), "logits": logits[0].float().cpu().contiguous()}


def _main(request: str, result: str) -> None:
    """Run the jobs of a JSON file and save their answers; this package is hidden until an `imported` job."""
    for name in PACKAGE:
        sys.modules[name] = None  # type: ignore[assignment]
    from safetensors.torch import save_file
    from transformers.utils import logging

    logging.disable_progress_bar()
    tensors, hidden = dict[str, Any](), True
    for turn, job in enumerate(json.loads(Path(request).read_text(encoding="utf-8"))):
        if job["way"] == "imported" and hidden:
            for name in PACKAGE:
                del sys.modules[name]
            sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
            __import__("secateur")
            hidden = False
        tensors |= {f"{turn}.{name}": tensor for name, tensor in _answer(job).items()}
    save_file(tensors, result)


if __name__ == "__main__":
    _main(*sys.argv[1:])
