"""What the parts of a block's solution took."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stages.models.loading.compute import synchronize


@dataclass
class Clock:
    """Seconds of solvers (corrections and refits included) and of calibration, wall and CPU."""

    solver_seconds: float = 0.0
    solver_cpu_seconds: float = 0.0
    calibration_seconds: float = 0.0
    calibration_cpu_seconds: float = 0.0

    @contextmanager
    def timing(self, part: str, device: torch.device) -> Iterator[None]:
        """Add the time of the body to `part`."""
        synchronize(device)
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        synchronize(device)
        for name, taken in (("seconds", time.perf_counter() - wall), ("cpu_seconds", time.process_time() - cpu)):
            setattr(self, f"{part}_{name}", getattr(self, f"{part}_{name}") + taken)

    def figures(self) -> dict[str, float]:
        """For the cost of the stage."""
        return dataclasses.asdict(self)
