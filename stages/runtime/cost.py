"""Wall and CPU time of a block's solution, added up for metrics/cost/solve.json."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from stages.models.loading.compute import synchronize


@dataclass
class BlockCost:
    """Wall and CPU seconds of calibrating one block and of its solvers (corrections and refits included)."""

    solver_seconds: float = 0.0
    solver_cpu_seconds: float = 0.0
    calibration_seconds: float = 0.0
    calibration_cpu_seconds: float = 0.0

    @contextmanager
    def timing(self, part: Literal["solver", "calibration"], device: torch.device) -> Iterator[None]:
        """Add the seconds that the body takes, work queued on `device` included, to those of `part`."""
        synchronize(device)
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        synchronize(device)
        for name, seconds in (("seconds", time.perf_counter() - wall), ("cpu_seconds", time.process_time() - cpu)):
            setattr(self, f"{part}_{name}", getattr(self, f"{part}_{name}") + seconds)

    def figures(self) -> dict[str, float]:
        """The seconds by name, as a block's work gives them to its stage."""
        return dataclasses.asdict(self)
