"""Secateur: prune language models as a pipeline whose every step is a file on disk."""

__version__ = "0.1.0"

import os
import sys
from types import TracebackType

# Read by OpenMP when torch is imported: idle threads spin for microseconds, not milliseconds, before they sleep.
# Alone a stage is as fast; two at once on the same cores take three times as long instead of thirty.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# Read by tqdm when it is imported: bars of libraries (lm-eval, datasets) are told to a log file too, but rarely.
if not sys.stderr.isatty():
    os.environ.setdefault("TQDM_MININTERVAL", "10")


def _end_with_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End as `run_stage` does where a stage fails before its work: in its imports or its arguments."""
    from pathlib import Path

    from stages.runtime.failures import end_failed

    sys.exit(end_failed(Path(sys.argv[0]).stem, error))


if sys.argv[:1] == ["-m"]:  # `python -m stages.<name>`, whose own imports are still to come
    sys.excepthook = _end_with_one_line
