"""Runs one stage: reads parameters, does the work, publishes the outputs, writes metrics/cost/<name>.json.

Every stage module ends with `sys.exit(run_stage("name", main))`. Every exception becomes one line and exit
code 2 (failures.py); outputs appear whole or not at all.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from stages import params
from stages.artifacts.atomic import replacing_folder, write_json
from stages.artifacts.places import COSTS
from stages.artifacts.store import FOLDER
from stages.errors import ParameterError
from stages.models.loading.memory import peak_memory_mb
from stages.runtime.blocks.contract import Block, BlockResult, BlockRunner, Work
from stages.runtime.blocks.plain import PlainRunner
from stages.runtime.blocks.selection import runner_of
from stages.runtime.failures import end_failed

GROUPS = {
    "evaluate": "groups of windows",
    "samples": "groups of images",
    "draw": "groups of images",
    "encode": "groups of images",
    "sample_features": "groups of images' features",
    "reference_features": "groups of reference images' features",
}
"""How the log names the results of tasks that are of no block."""

log = logging.getLogger("secateur")


@dataclass(frozen=True)
class StageRun:
    """One run of a stage: its parameters, its blocks' work, the publishing of its outputs, and what it cost.

    sections: dotted names of the parameters that the stage's outputs follow from.
    runner:   does the work of blocks, here, on threads, on Dask or as Prefect tasks.
    figures:  go into metrics/cost/<name>.json beside the seconds.
    restored: by task of the block store, how many results were restored and how many there are.
    """

    name: str
    params: params.Params
    sections: tuple[str, ...]
    runner: BlockRunner
    figures: dict[str, Any] = field(default_factory=dict)
    restored: dict[str, list[int]] = field(default_factory=dict)

    def run_block(self, block: Block, work: Work) -> Path:
        """The file of a block's result in the block store, where `work` writes it unless it is there."""
        return self._count(self.runner.run_block(block, work))

    def run_blocks(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[Path]:
        """`run_block` of blocks that do not need each other, maybe side by side; `tick` is called after each."""
        return [self._count(result) for result in self.runner.run_blocks(blocks, tick)]

    def log_restored(self) -> None:
        """Log how many results of earlier runs were restored, if any."""
        tasks = {task: counts for task, counts in self.restored.items() if counts[0]}
        for task, (restored, count) in tasks.items():
            what = GROUPS.get(task) or ("blocks" if len(tasks) == 1 else f"blocks ({task})")
            log.info("%d of %d %s restored from %s, %d made", restored, count, what, FOLDER, count - restored)

    def _count(self, result: BlockResult) -> Path:
        """Add a block's result and its figures to the run's; gives the result's path."""
        of_task = self.restored.setdefault(result.path.parent.name, [0, 0])
        of_task[:] = of_task[0] + (not result.made), of_task[1] + 1
        counted = {"blocks_made": int(result.made), "blocks_restored": int(not result.made), **result.figures}
        for name, value in counted.items():
            self.figures[name] = self.figures.get(name, 0) + value
        return result.path

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
    """The parameters of a section by its dotted name; of `methods`, those of solve.method (rules carry their own)."""
    return values.methods.get(values.solve.method) if name == "methods" else attrgetter(name)(values)


def run_stage(
    name: str,
    main: Callable[[StageRun], None],
    sections: Iterable[str],
    cost_name: str | None = None,
    blockwise: bool = False,
) -> int:
    """Run `main` with params.yaml and give the exit code: 0, 2 (failed) or 130 (stopped); both are one line on stderr.

    sections: see StageRun; cost_name: of the file in metrics/cost, `name` by default.
    blockwise: its blocks are Prefect tasks where a server answers.
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
        runner = runner_of(values.workers) if blockwise else PlainRunner(values.workers)
        run = StageRun(name, values, tuple(sections), runner)
        runner.run_stage(cost_name or name, lambda: main(run))
        run.log_restored()
        cost = {
            **{key: round(value, 2) if isinstance(value, float) else value for key, value in run.figures.items()},
            "seconds": round(time.perf_counter() - wall, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "peak_memory_mb": peak_memory_mb(),
        }
        write_json(COSTS / f"{cost_name or name}.json", cost)
    except KeyboardInterrupt as stop:
        return end_failed(name, stop)
    except (Exception, SystemExit) as error:  # a library's sys.exit is no way for a stage to end either
        return end_failed(name, error)
    return 0


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser whose --help says what the stage does."""
    return argparse.ArgumentParser(
        prog=f"python -m stages.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
