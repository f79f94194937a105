"""The check of a finished checkpoint: it is loaded again, and its logits are compared with those that were meant.

In this process against the walk over the masked model (`compare_masked`), in a fresh process as its users will load it
(`compare_fresh`), and for a sliced model against the dense one that projects its hidden states (`compare_sliced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.assembly.layout import Layout
from stages.errors import ArtifactError
from stages.models.export.fresh import Answer, Job, Way, answers
from stages.models.loading.load import load_model
from stages.models.streaming.slicing import projecting
from stages.models.streaming.streamed import StreamedModel
from stages.walk.bases import bases_reader, read_final_basis
from stages.walk.pruned import Pruned

TOKENS = 64
"""Tokens of calibration text whose logits are compared."""
NEW_TOKENS = 8
"""Tokens that a fresh process generates after them."""
ROUNDING = 16
"""Differences between logits that are due to the stored dtype: so many times its epsilon, of the largest logit."""


def compare_masked(
    folder: Path, pruned: Pruned, tokens: Tensor, largest: float, trust_remote_code: bool
) -> dict[str, Any]:
    """Load `folder` by AutoModelForCausalLM and compare weights (exactly) and logits with the walk's.

    tokens: calibration ids (n,); largest: the difference allowed between logits.
    Gives the figures for the manifest; raises ArtifactError if the checkpoint is not what was meant.
    """
    model, compared = pruned.model, 0
    loaded = load_model(folder, _name_of(model.dtype), str(model.device), trust_remote_code)
    state = loaded.state_dict()

    def same_block(index: int) -> Mapping[str, Tensor]:
        nonlocal compared
        expected = pruned.block(index)
        for name, weight in expected.items():
            if not torch.equal(state[name].cpu(), weight.to(model.dtype)):
                raise ArtifactError(f"{name} was not the same after loading {folder} again: nothing was written")
        compared += len(expected)
        return expected

    ids = tokens[: min(TOKENS, model.positions or TOKENS)].unsqueeze(0)
    logits = _logits_of(loaded, ids)
    difference = checked_difference(logits, model.logits(ids, same_block), largest)
    return {"tensors_compared": compared, "logits_compared": logits.numel(), "max_logit_difference": difference}


def compare_fresh(
    folder: Path, pruned: Pruned, tokens: Tensor, largest: float, trust_remote_code: bool, layout: Layout
) -> dict[str, Any]:
    """Have AutoModelForCausalLM in a fresh process load `folder` and generate after `tokens`; ours in both their ways.

    Logits are those of float32, where a narrower sum can only differ in its last bits. The generated tokens must be
    those of the masked dense model, which runs on the whole sequence at once. Gives the figures for the manifest;
    raises ArtifactError where logits differ by more than `largest` or another token was chosen. The tokens of an image
    model begin with the class of an image.
    """
    model = pruned.model.in_dtype("float32")
    prompt = tokens[: min(TOKENS, (model.positions or TOKENS + NEW_TOKENS) - NEW_TOKENS)].tolist()
    ways: tuple[Way, ...] = ("plain",) if layout.made_for is None else ("remote", "imported")
    jobs = [Job(str(folder.resolve()), prompt, NEW_TOKENS, way, str(model.device), trust_remote_code) for way in ways]
    try:
        answered = dict(zip(ways, answers(jobs), strict=True))
    except ValueError as error:
        raise ArtifactError(f"the checkpoint did not load in a fresh process: {error}: nothing was written") from None
    expected = {
        sequence: model.logits(torch.tensor([sequence]), pruned.block)[0].cpu()
        for sequence in {tuple(answer.sequence) for answer in answered.values()}
    }
    differences = dict[str, float]()
    for way, answer in answered.items():
        logits = expected[tuple(answer.sequence)]
        differences[way] = checked_difference(answer.logits, logits, largest)
        _check_generated(answer, logits, len(prompt), largest)
    return {
        "in": "a fresh process",
        "dtype": "float32",
        "logits_compared": sum(answer.logits.numel() for answer in answered.values()),
        "tokens_generated": NEW_TOKENS,
        "max_logit_difference": max(differences.values()),
        "ways": differences,
    }


def compare_sliced(
    folder: Path, model: StreamedModel, solutions: list[Path], tokens: Tensor, largest: float
) -> dict[str, Any]:
    """Load a sliced checkpoint by AutoModelForCausalLM and compare its logits, and its weights' in float64.

    Weights are compared with the dense model that projects its hidden states (two ways to compute one function) in
    float64: hidden states with a few large entries, rotated, round otherwise than as they were. Gives the figures for
    the manifest; raises ArtifactError if logits differ by more than `largest` (weights': and the rounding of the
    dtype they are stored in).
    """
    ids, dtype = tokens[:TOKENS].unsqueeze(0), _name_of(model.dtype)
    dense = model.in_dtype("float64")
    with projecting(dense, bases_reader(solutions), range(dense.blocks), read_final_basis(solutions)):
        expected = dense.logits(ids)
    stored = StreamedModel(folder, model.device, "float64").logits(ids)
    rounding = ROUNDING * torch.finfo(model.weights.dtype).eps * float(expected.abs().max())
    of_weights = checked_difference(stored, expected, largest + rounding, "weights")

    logits = _logits_of(load_model(folder, dtype, str(model.device)), ids)
    reloaded = checked_difference(logits, StreamedModel(folder, model.device, dtype).logits(ids), largest)
    return {"logits_compared": logits.numel(), "max_logit_difference": max(of_weights, reloaded)}


def checked_difference(logits: Tensor, expected: Tensor, allowed: float, whose: str = "reloaded checkpoint") -> float:
    """The largest absolute difference of two tensors of logits; raises ArtifactError where it is above `allowed`."""
    difference = float((logits - expected).abs().max())
    if not difference <= allowed:  # NaN neither
        raise ArtifactError(
            f"the {whose}'s logits differ by {difference:g}: expected at most {allowed:g} "
            "(assemble.max_logit_difference)"
        )
    return difference


def _logits_of(loaded: Any, ids: Tensor) -> Tensor:
    """Logits (1, n, vocabulary) of a model of transformers for ids (1, n)."""
    with torch.no_grad():
        logits: Tensor = loaded(input_ids=ids.to(loaded.device), use_cache=False).logits
    return logits


def _check_generated(answer: Answer, expected: Tensor, prompt: int, largest: float) -> None:
    """Raise ArtifactError unless every generated token has the highest of `expected` logits (length, vocabulary).

    Logits of both sides may be off by `largest`, so those of two tokens by twice that. prompt: tokens that were given.
    """
    before = expected[prompt - 1 : -1]
    chosen = before.gather(1, torch.tensor(answer.sequence[prompt:])[:, None])[:, 0]
    if bool((chosen < before.amax(1) - 2 * largest).any()):
        raise ArtifactError("the reloaded checkpoint generates other tokens than the masked dense model")


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
