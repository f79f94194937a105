"""Errors of flows that a user can put right, shown in one line without a traceback."""

from __future__ import annotations

import logging


class FlowError(Exception):
    """Something the user can put right; the message says what to do."""


class StageFailed(FlowError):
    """A stage ended with an error; the message is its own."""


class NetworkFailed(StageFailed):
    """A stage could not reach the network: a second try can help."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or ["it told no reason"])[0]


def reason_of(error: BaseException) -> str:
    """DVC's error in a line: the first of its cause (Hydra's other lines repeat it), else its own."""
    return first_line(error.__cause__ or error)


class _OneLine(logging.Filter):
    """Logging filter that removes the traceback from records about a FlowError."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FlowError):
            record.exc_info, record.exc_text = None, None
            record.msg, record.args = str(error), ()
        return True


def quiet_tracebacks() -> None:
    """Have Prefect's loggers show FlowErrors in one line."""
    for name in ("prefect.task_runs", "prefect.flow_runs", "prefect.engine"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _OneLine) for each in logger.filters):
            logger.addFilter(_OneLine())
