"""Overlap of calibration and evaluation, text or images: refuses to measure a model on what it was calibrated on."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from stages.errors import ParameterError
from stages.sources.repeats import LONG, stripped_lines
from stages.sources.texts import ChosenText

SHORT = 40
"""Length of a line that counts in wrapped text and verse, which have few long ones."""


def shared_fraction(calibration: Iterable[str], evaluation: Iterable[str]) -> float:
    """Fraction of the evaluation text that is also in the calibration text, 0 to 1.

    Counted in characters of lines, stripped, of at least 80 characters (of at least 40 where lines that long
    hold less than half of the evaluation text), over all characters in such lines.
    """
    every = [line for document in evaluation for line in stripped_lines(document)]
    judged = [line for line in every if len(line) >= LONG]
    if 2 * sum(map(len, judged)) < sum(map(len, every)):
        judged = [line for line in every if len(line) >= SHORT]
    known = {line for document in calibration for line in stripped_lines(document)}
    characters = sum(map(len, judged))
    return sum(len(line) for line in judged if line in known) / characters if characters else 0.0


def check_disjoint(calibration: ChosenText, evaluation: ChosenText, largest: float) -> float:
    """The fraction of the evaluation text that calibration holds too; raises ParameterError above `largest`."""
    if calibration.facts["sha256"] == evaluation.facts["sha256"]:
        raise ParameterError(
            "fetch.evaluation: this is the calibration text: take another split, another file, or other "
            "`documents` than fetch.calibration"
        )
    share = shared_fraction(*([document.text for document in text.documents] for text in (calibration, evaluation)))
    if share > largest:
        raise ParameterError(
            f"fetch.evaluation: {share:.1%} of it stands in the calibration text too, expected at most {largest:.1%} "
            "(fetch.max_overlap): take another split, another file, or `documents` that do not meet"
        )
    return share


def check_unseen(calibration: Tensor, evaluation: Tensor, largest: float) -> float:
    """The fraction of evaluation images that calibration has too; raises ParameterError above `largest`.

    Codes (images, codes) of both; images are the same where all their codes are.
    """
    known = {row.numpy().tobytes() for row in calibration}
    seen = sum(row.numpy().tobytes() in known for row in evaluation)
    if seen > largest * len(evaluation):
        raise ParameterError(
            f"fetch.evaluation: {seen} of its {len(evaluation)} images are also in calibration, expected at most "
            f"{largest:.1%} (fetch.max_overlap): take another folder, another seed, or `images` that do not meet"
        )
    return seen / len(evaluation)
