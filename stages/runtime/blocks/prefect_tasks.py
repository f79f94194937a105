"""Runs blocks as Prefect tasks whose results are references into the block store.

The only module that imports Prefect, and only where PREFECT_API_URL names a server: the page of a run then
shows every block, and a block that is in the store as Cached. A reference to a file that is missing or
not what its hash says is no result: the block's task runs again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
# These tell a run's error with its traceback, in Dask's workers too: here it is raised, wherever the task ran.
os.environ.setdefault("PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL", "CRITICAL")
os.environ.setdefault("PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL", "CRITICAL")

from prefect import flow, task
from prefect.serializers import Serializer
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner

from stages.artifacts.manifest import sha256_of
from stages.params import Workers
from stages.runtime.blocks.cluster import check_cluster, local_cluster
from stages.runtime.blocks.contract import Block, BlockResult, Work, WorkerContext, perform_at

RESULTS = Path(".cache/prefect")


class BlockReference(Serializer):  # type: ignore[type-arg]
    """Prefect serializer of a BlockResult as path and sha256; reading it checks the file."""

    type: Literal["secateur-block"] = "secateur-block"

    def dumps(self, obj: BlockResult) -> bytes:
        """The reference, as JSON."""
        return json.dumps({"path": str(obj.path), "sha256": sha256_of(obj.path)}).encode()

    def loads(self, blob: bytes) -> BlockResult:
        """The result; raises ValueError, which Prefect takes as `not cached`, if the file is not intact."""
        facts = json.loads(blob)
        path = Path(facts["path"])
        if not path.is_file() or sha256_of(path) != facts["sha256"]:
            raise ValueError(f"{path} is not there, or not what it was")
        return BlockResult(path, made=False)


class PrefectRunner:
    """A BlockRunner whose blocks are tasks of the server at PREFECT_API_URL."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def run_stage(self, name: str, main: Callable[[], None]) -> None:
        """Run a stage's main function as a flow; its own error comes out, not Prefect's account of it."""
        failures: list[Exception] = []

        def stage() -> Any:
            try:
                main()
            except Exception as error:
                failures.append(error)
                return Failed(message=str(error))

        state: Any = flow(name=f"stage {name}", flow_run_name=name)(stage)(return_state=True)
        if failures:
            raise failures[0]
        state.result()

    def run_block(self, block: Block, work: Work) -> BlockResult:
        """See BlockRunner."""
        context = WorkerContext.here()
        return _task(block, lambda: perform_at(context, block, work))()

    def run_blocks(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[BlockResult]:
        """See BlockRunner; `tick` is called in the order of the blocks."""
        if not blocks:
            return []
        name = f"{blocks[0][0].task} blocks"
        _batch.blocks, _batch.tick = blocks, tick
        results: list[BlockResult] = flow(name=name, flow_run_name=name, task_runner=self._task_runner())(_together)()
        return results

    def _task_runner(self) -> Any:
        if self.workers.runner == "threads":
            return ThreadPoolTaskRunner(max_workers=self.workers.count)
        check_cluster(self.workers)
        from prefect_dask import DaskTaskRunner

        if self.workers.address:
            return DaskTaskRunner(address=self.workers.address)
        return DaskTaskRunner(cluster_kwargs=local_cluster(self.workers))


class _Batch:
    """The blocks that `_together` runs: not its arguments, since Prefect would send those to every worker."""

    blocks: Sequence[tuple[Block, Work]] = ()
    tick: Callable[[], object]


_batch = _Batch()


def _together() -> list[BlockResult]:
    context = WorkerContext.here()
    futures = [_task(block, perform_at).submit(context, block, work) for block, work in _batch.blocks]
    done = []
    for future in futures:
        done.append(future.result())
        _batch.tick()
    return done


def _task(block: Block, function: Callable[..., BlockResult]) -> Any:
    RESULTS.mkdir(parents=True, exist_ok=True)
    key = f"{block.task}-{block.key}"
    return task(
        name=block.task,
        task_run_name=block.name,
        cache_key_fn=lambda context, arguments: key,
        persist_result=True,
        result_storage=RESULTS.resolve(),
        result_serializer=BlockReference(),
    )(function)
