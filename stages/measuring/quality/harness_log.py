"""Collects what lm-eval logs: errors in a figure stop the evaluation, other warnings are logged once."""

from __future__ import annotations

import contextlib
import logging
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import BufferingHandler

from stages.errors import ParameterError

COUNTED_ELSEWHERE = ("Combined length of context", "Left truncation applied")
"""Warnings for each prompt that is cut: `prompts.CutPrompts` counts them by task."""
MAKES_A_FIGURE_WRONG = ("Label index was not in within range",)
"""Warnings after which lm-eval goes on with a document counted as answered wrongly."""
LONGEST = 300

log = logging.getLogger("secateur")


@dataclass(frozen=True)
class HarnessLog:
    """Log records of lm-eval at WARNING or above, in their order."""

    records: list[logging.LogRecord]

    def refuse_errors(self) -> None:
        """Raise ParameterError if a record means that a figure is missing or wrong."""
        for record in self.records:
            text = record.getMessage()
            if record.levelno >= logging.ERROR or text.startswith(MAKES_A_FIGURE_WRONG):
                raise ParameterError(
                    f"evaluate.tasks.names: lm-eval could not measure a task: {_short(text)}: put the task's YAML file "
                    "right (metric_list, doc_to_target, doc_to_choice), or leave the task out"
                )

    def pass_on(self) -> None:
        """Log each warning once."""
        texts = (_short(record.getMessage()) for record in self.records)
        for text, count in Counter(text for text in texts if not text.startswith(COUNTED_ELSEWHERE)).items():
            log.warning("lm-eval: %s%s", text, f" ({count} times)" if count > 1 else "")


@contextlib.contextmanager
def harness_warnings() -> Iterator[HarnessLog]:
    """Collect what lm-eval logs at WARNING or above in the body; log it at the end, even after a failure."""
    logger, buffer = logging.getLogger("lm_eval"), BufferingHandler(sys.maxsize)
    before = logger.level, logger.propagate
    collected = HarnessLog(buffer.buffer)
    logger.addHandler(buffer)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield collected
    finally:
        logger.removeHandler(buffer)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        collected.pass_on()


def _short(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=" ...")
