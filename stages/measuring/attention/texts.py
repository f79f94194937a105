"""The two texts that attention matrices are compared on: windows that the solver was calibrated on, and unseen ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from stages.artifacts.manifest import read_manifest
from stages.artifacts.places import PRUNED, TEXTS
from stages.artifacts.tokens import first_sequences, read_tokens, sample_windows
from stages.errors import ArtifactError, ParameterError
from stages.params.evaluating import Attention


def texts_to_compare(settings: Attention, calibration: Mapping[str, Any]) -> dict[str, Tensor]:
    """Token ids (sequences, length) of `calibration`, the beginnings of its windows, and of `held_out` text or images.

    calibration: the facts of data/pruned; there are no more and no longer sequences than it had.
    Raises ArtifactError if it was of another text than the one at hand, ParameterError for more tokens than that has.
    """
    facts = read_manifest(TEXTS)
    if facts["calibration"] != calibration["text"]:
        raise ArtifactError(f"{PRUNED} was calibrated on another text than {TEXTS} holds now: run `dvc repro`")
    sequences, length, seed = (calibration[name] for name in ("sequences", "length", "seed"))
    tokens = read_tokens(TEXTS, "calibration", facts)
    windows = sample_windows(tokens, sequences, length, seed, calibration["text"])
    seen = windows[: settings.sequences, : settings.length]
    unseen, sequence = read_tokens(TEXTS, "evaluation", facts), facts["evaluation"].get("sequence")
    if sequence is not None:
        return {"calibration": seen, "held_out": first_sequences(unseen, seen.shape[0], seen.shape[1], sequence)}
    if seen.numel() > len(unseen):
        raise ParameterError(
            f"evaluate.attention: {seen.shape[0]} sequences of {seen.shape[1]} tokens are more than the {len(unseen)} "
            "tokens of the evaluation text: use fewer or shorter ones, or more text (fetch.evaluation)"
        )
    return {"calibration": seen, "held_out": unseen[: seen.numel()].view_as(seen)}
