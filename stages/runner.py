"""The life of one stage: read parameters, do the work, publish the outputs, tell the cost.

Every stage module ends with `sys.exit(run_stage("name", main))`. Every exception becomes one line and exit
code 2 (failures.py); outputs appear whole or not at all.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stages import params
from stages.artifacts.atomic import replacing_folder, write_json
from stages.blocks import runner_of
from stages.blocks.contract import BlockRunner, Done
from stages.blocks.plain import PlainRunner
from stages.errors import ParameterError, SecateurError
from stages.failures import failed
from stages.memory import peak_memory_mb
from stages.places import COSTS

log = logging.getLogger("secateur")


@dataclass(frozen=True)
class StageRun:
    """What a stage is given: its name, the parameters, a way to publish folders and note figures."""

    name: str
    params: params.Params
    sections: tuple[str, ...]
    blocks: BlockRunner
    """Who does the work of single blocks."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures that go into metrics/cost/<name>.json beside the seconds."""

    def note(self, done: Done) -> Path:
        """Count a block's result and its figures; gives its path."""
        counted = {"blocks_made": int(done.made), "blocks_restored": int(not done.made), **done.figures}
        for name, value in counted.items():
            self.figures[name] = self.figures.get(name, 0) + value
        return done.path

    @contextmanager
    def output(self, path: Path) -> Iterator[Path]:
        """A folder to fill; it replaces `path` when the body succeeds and params.yaml still agrees."""
        with replacing_folder(path) as temporary:
            yield temporary
            self._check_unchanged()

    def _check_unchanged(self) -> None:
        now = params.read()
        for section in self.sections:
            if _section(now, section) != _section(self.params, section):
                raise ParameterError(
                    f"params.yaml: {section} changed while {self.name} was running: nothing was written; "
                    "run it again (use `dvc exp run -S` to try values side by side)"
                )


def _section(values: params.Params, name: str) -> Any:
    """A section, or a part by its dotted name; of `methods`, the settings of solve.method (rules carry their own)."""
    return values.methods.get(values.solve.method) if name == "methods" else attrgetter(name)(values)


def run_stage(
    name: str,
    main: Callable[[StageRun], None],
    sections: Iterable[str],
    cost_name: str | None = None,
    blockwise: bool = False,
) -> int:
    """Run `main` with the parameters at hand and give the exit code: 0, 2 (failed) or 130 (stopped), told in a line.

    blockwise: its blocks are Prefect's tasks where there is a server.
    """
    logging.basicConfig(level=logging.INFO, format=f"{name:<10} %(message)s", stream=sys.stderr, force=True)
    for noisy in (
        "httpx",
        "datasets",
        "filelock",
        "fsspec",
        "urllib3",
        "transformers",
        "huggingface_hub",
        "distributed",
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    wall, cpu = time.perf_counter(), time.process_time()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        values = params.read()
        blocks = runner_of(values.workers) if blockwise else PlainRunner(values.workers)
        run = StageRun(name, values, tuple(sections), blocks)
        blocks.run(cost_name or name, lambda: main(run))
        cost = {
            **{key: round(value, 2) if isinstance(value, float) else value for key, value in run.figures.items()},
            "seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "peak_memory_mb": peak_memory_mb(),
        }
        write_json(COSTS / f"{cost_name or name}.json", cost)
    except KeyboardInterrupt as stop:
        return failed(name, stop)
    except (Exception, SystemExit) as error:  # a library's sys.exit is no way for a stage to end either
        return failed(name, error)
    return 0


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser whose --help says what the stage does."""
    return argparse.ArgumentParser(
        prog=f"python -m stages.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def progress(things: Iterable[Any] | None = None, **options: Any) -> Any:
    """A progress bar (tqdm's arguments), rarely redrawn where its output goes to a file."""
    return tqdm(things, mininterval=0.1 if sys.stderr.isatty() else 10.0, **options)


def need_disk(folder: Path, needed: float, what: str) -> None:
    """Raise SecateurError unless the disk under `folder` has room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SecateurError(
            f"the disk is too small for {what}: expected {needed / 1e9:.2f} GB free in {folder}, got {free / 1e9:.2f}: "
            "free some, or use fewer calibration.sequences"
        )
