"""Measurement protocols as one line of text: figures compare where these lines are equal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stages.params.evaluating import Perplexity, Tasks


def perplexity_in_words(protocol: Perplexity, text: Mapping[str, Any], measured: Mapping[str, Any], dtype: str) -> str:
    """The perplexity protocol in a line; perplexities are comparable if, and only if, these lines are equal.

    text:     facts about the evaluation text, of the manifest of data/texts; `sequence`, tokens of an image, if it is
              of images.
    measured: the figures of `perplexity`.
    """
    tail = f"{dtype.removeprefix('torch.')}; text sha256 {text.get('sha256', '')[:12]}"
    if "sequence" in text:
        return (
            f"{text.get('name', 'unnamed images')}; the {protocol.window - 1} codes of each of {measured['windows']} "
            f"images after its class; {measured['tokens']} codes scored; {tail}"
        )
    join = json.dumps(text.get("join", ""), ensure_ascii=False)
    replaced = "".join(f", {old} as {new}" for old, new in text.get("replace", {}).items())
    overlap = "side by side" if protocol.stride == protocol.window else f"{protocol.stride} apart"
    return (
        f"{text.get('name', 'unnamed text')}, joined by {join}{replaced}, tokenised at once; "
        f"{measured['windows']} windows of {protocol.window} tokens, {overlap}, "
        f"{'BOS before each' if protocol.bos else 'no BOS'}; "
        f"{measured['tokens']} tokens scored; {tail}"
    )


def tasks_in_words(settings: Tasks, measured: Mapping[str, Mapping[str, float]], longest: int | None) -> str:
    """The protocol of lm-eval's tasks in a line; empty without tasks.

    measured: a row a task and group, see `evaluate_tasks`. longest: tokens of the longest input.
    """
    if not settings.names:
        return ""
    which = "all" if settings.limit is None else "the first"
    tasks = [
        f"{name} ({row['fewshot']}-shot, {which} {row['n']} documents)"
        for name, row in measured.items()
        if "fewshot" in row
    ]
    return f"lm-eval: {', '.join(tasks)}; at most {longest} tokens a prompt, no chat template; seed {settings.seed}"
