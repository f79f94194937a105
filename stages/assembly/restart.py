"""Load a finished checkpoint in a fresh process, as its users will, and compare its answers with the masked model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.assembly.layout import Layout
from stages.errors import ArtifactError
from stages.models.export.fresh import Answer, Job, Way, answers
from stages.walk.pruned import Pruned

TOKENS = 64
NEW_TOKENS = 8


def compare_afresh(
    folder: Path, pruned: Pruned, tokens: Tensor, largest: float, trust_remote_code: bool, layout: Layout
) -> dict[str, Any]:
    """Have plain AutoModelForCausalLM load `folder` and go on from `tokens`; hetero is loaded in both its ways.

    Logits are those of float32, where a narrower sum can only differ in its last bits. The tokens it chose must be
    those of the masked dense model, which is asked for the whole sequence at once. Gives the figures for the manifest;
    raises ArtifactError where logits differ by more than `largest` or another token was chosen.
    """
    model = pruned.model.in_dtype("float32")
    begin = tokens[: min(TOKENS, (model.positions or TOKENS + NEW_TOKENS) - NEW_TOKENS)].tolist()
    ways: tuple[Way, ...] = ("plain",) if layout.code is None else ("remote", "imported")
    jobs = [Job(str(folder.resolve()), begin, NEW_TOKENS, way, str(model.device), trust_remote_code) for way in ways]
    try:
        found = dict(zip(ways, answers(jobs), strict=True))
    except ValueError as error:
        raise ArtifactError(f"the checkpoint did not load in a fresh process: {error}: nothing was written") from None
    meant = {
        sequence: model.logits(torch.tensor([sequence]), pruned.block)[0].cpu()
        for sequence in {tuple(answer.sequence) for answer in found.values()}
    }
    differences = {
        way: _difference(answer, meant[tuple(answer.sequence)], len(begin), largest) for way, answer in found.items()
    }
    return {
        "in": "a fresh process",
        "dtype": "float32",
        "logits_compared": sum(answer.logits.numel() for answer in found.values()),
        "tokens_generated": NEW_TOKENS,
        "max_logit_difference": max(differences.values()),
        "ways": differences,
    }


def _difference(answer: Answer, meant: Tensor, begun: int, largest: float) -> float:
    """Largest difference from the logits (length, vocabulary) that were meant for the same sequence."""
    difference = float((answer.logits - meant).abs().max())
    if not difference <= largest:
        raise ArtifactError(
            f"the reloaded checkpoint's logits differ by {difference:g}: expected at most {largest:g} "
            "(assemble.max_logit_difference)"
        )
    asked = meant[begun - 1 : -1]
    chosen = asked.gather(1, torch.tensor(answer.sequence[begun:])[:, None])[:, 0]
    if bool((chosen < asked.amax(1) - 2 * largest).any()):
        raise ArtifactError("the reloaded checkpoint generates other tokens than the masked dense model")
    return difference
