"""Peak memory of loading a model and generating text or images, measured in a process of its own.

Run as `python -m stages.measuring.speed.footprint`, it reads a JSON object with the arguments of `peak_mb` and
prints the figure. In the process that asks, memory of other models and of earlier work would be counted too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.errors import SecateurError
from stages.measuring.speed.drawing import Drawing, draw_images
from stages.measuring.speed.generation import generate
from stages.models.loading.load import load_model
from stages.models.loading.memory import peak_memory_mb


def peak_in_process(
    folder: Path, dtype: str, device: str, trust: bool, prompt: Tensor, count: int, drawing: Drawing | None
) -> int:
    """`peak_mb` of the checkpoint in `folder`, measured in a fresh process with as many threads as this one.

    Raises SecateurError, with its last line, if that process fails.
    """
    arguments = {
        "folder": str(folder),
        "dtype": dtype,
        "device": device,
        "trust": trust,
        "prompt": prompt.tolist(),
        "count": count,
        "drawing": asdict(drawing) if drawing else None,
        "threads": torch.get_num_threads(),
    }
    command = [sys.executable, "-m", "stages.measuring.speed.footprint"]
    ended = subprocess.run(command, input=json.dumps(arguments), capture_output=True, text=True, check=False)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        killed = ", killed: perhaps for want of memory" if ended.returncode < 0 else ""
        raise SecateurError(
            f"the memory of {folder} could not be measured (exit code {ended.returncode}{killed}): {last}"
        )
    return int(ended.stdout.split()[-1])


def peak_mb(
    folder: str,
    dtype: str,
    device: str,
    trust: bool,
    prompt: list[list[int]],
    count: int,
    drawing: dict[str, Any] | None,
    threads: int,
) -> int:
    """Peak memory, MB (2²⁰ bytes), of loading a checkpoint and generating `count` tokens after `prompt` (batch, T).

    drawing: the fields of a `Drawing`, whose images an image model draws instead; None: a model of text.

    On a CPU resident memory, mapped weights included, above what the process had before; on CUDA what torch allocated.
    """
    torch.set_num_threads(threads)
    before = peak_memory_mb()
    model = load_model(Path(folder), dtype, device, trust)
    if drawing:
        draw_images(model, Drawing(**drawing))
    else:
        generate(model, torch.tensor(prompt), count)
    if model.device.type == "cuda":
        return torch.cuda.max_memory_allocated(model.device) // 2**20
    return peak_memory_mb() - before


if __name__ == "__main__":
    try:
        print(peak_mb(**json.load(sys.stdin)))
    except SecateurError as error:
        sys.exit(str(error))
