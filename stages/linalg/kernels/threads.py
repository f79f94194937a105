"""Row-parallel execution on Python threads, for kernels that release the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def over_rows(work: Callable[[int, int], None], rows: int, threads: int) -> None:
    """Run `work(start, stop)` on `threads` contiguous pieces of range(rows), directly where one is enough.

    What `work` writes must not depend on where the pieces begin; then the result does not depend on
    the number of threads. The first exception of a piece is raised here.
    """
    pieces = max(1, min(threads, rows))
    if pieces == 1:
        work(0, rows)
        return
    bounds = [rows * piece // pieces for piece in range(pieces + 1)]
    with ThreadPoolExecutor(pieces) as pool:
        for _ in pool.map(work, bounds[:-1], bounds[1:]):
            pass
