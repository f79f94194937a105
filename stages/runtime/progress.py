"""Progress bars (tqdm), often redrawn in a terminal, rarely in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress(things: Iterable[Any] | None = None, **options: Any) -> Any:
    """A progress bar (tqdm's arguments), rarely redrawn where its output goes to a file."""
    return tqdm(things, mininterval=0.1 if sys.stderr.isatty() else 10.0, **options)
