"""Times generation of two models in turns, so that a machine that slows down or speeds up does it to both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from torch import Tensor

from stages.artifacts.table import Row
from stages.measuring.speed.drawing import Drawing, draw_images
from stages.measuring.speed.generation import generate

UNITS = {"prefill": "tokens", "decode": "tokens", "images": "images"}
"""Phases, and what of theirs is counted a second."""
PREFILLS = 4


def time_in_turns(
    models: Mapping[str, Any],
    prompt: Tensor,
    count: int,
    warmup: int,
    repeats: int,
    tick: Callable[[], object],
) -> list[Row]:
    """A row a round, model and phase: its tokens and seconds; what the warm-up takes is left out.

    In a round every model takes a turn, in the order given, on `prompt` (batch, T): `count` new tokens, and then
    PREFILLS - 1 rounds of the prompt alone, whose time is short and so less certain. `warmup` and `repeats` count the
    rounds that generate, and `tick` is called after each model's turn in them.
    """
    rows = list[Row]()
    for index in range(-warmup, repeats):
        for turn in range(PREFILLS):
            for name, model in models.items():
                generated = generate(model, prompt, 1 if turn else count)
                if index >= 0:
                    place = {"round": index * PREFILLS + turn, "model": name}
                    rows.append({**place, "phase": "prefill", "tokens": prompt.numel(), "seconds": generated.prefill})
                if index >= 0 and not turn:
                    tokens = len(prompt) * (count - 1)
                    rows.append({**place, "phase": "decode", "tokens": tokens, "seconds": generated.decode})
                if not turn:
                    tick()
    return rows


def draw_in_turns(
    models: Mapping[str, Any], drawing: Drawing, warmup: int, repeats: int, tick: Callable[[], object]
) -> list[Row]:
    """A row a round and model, of phase `images`: the images drawn, their codes, seconds. Else as `time_in_turns`."""
    rows = list[Row]()
    drawn = {"phase": "images", "tokens": drawing.batch * drawing.codes, "images": drawing.batch}
    for index in range(-warmup, repeats):
        for name, model in models.items():
            seconds = draw_images(model, drawing)
            if index >= 0:
                rows.append({"round": index, "model": name, **drawn, "seconds": seconds})
            tick()
    return rows


def speeds(rows: Sequence[Row], model: str) -> dict[str, dict[str, float]]:
    """Tokens, or images, a second of each phase over the rounds: median, lowest and highest."""
    return {phase: spread(_by_round(rows, model, phase).values()) for phase in phases_of(rows)}


def speed_ratios(rows: Sequence[Row], over: str, under: str) -> dict[str, dict[str, float]]:
    """How many times as fast model `over` is as `under`, round by round: median, lowest and highest."""
    ratios = {}
    for phase in phases_of(rows):
        above, below = _by_round(rows, over, phase), _by_round(rows, under, phase)
        ratios[phase] = spread(above[index] / below[index] for index in above)
    return ratios


def phases_of(rows: Sequence[Row]) -> list[str]:
    """The phases that were timed."""
    timed = {row["phase"] for row in rows}
    return [phase for phase in UNITS if phase in timed]


def spread(values: Any) -> dict[str, float]:
    """median, lowest and highest of some numbers."""
    values = list(values)
    return {"median": median(values), "lowest": min(values), "highest": max(values)}


def _by_round(rows: Sequence[Row], model: str, phase: str) -> dict[int, float]:
    """Tokens, or images, a second of each round."""
    chosen = [row for row in rows if (row["model"], row["phase"]) == (model, phase)]
    return {row["round"]: row[UNITS[phase]] / row["seconds"] for row in chosen}
