"""Runs blocks without Prefect: one after another, on threads of this process, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from stages.params import Workers
from stages.runtime.blocks.cluster import dask_client
from stages.runtime.blocks.contract import Block, BlockResult, Work, WorkerContext, attempt_at, perform, perform_at


@dataclass(frozen=True)
class PlainRunner:
    """A BlockRunner of params.yaml's section `workers`."""

    workers: Workers

    def run_stage(self, name: str, main: Callable[[], None]) -> None:
        """Run a stage's main function."""
        main()

    def run_block(self, block: Block, work: Work) -> BlockResult:
        """See BlockRunner."""
        return perform(block, work)

    def run_blocks(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[BlockResult]:
        """See BlockRunner."""
        if self.workers.runner == "dask":
            return self._on_dask(blocks, tick)
        if self.workers.count > 1:
            return self._on_threads(blocks, tick)
        done = []
        for block, work in blocks:
            done.append(perform(block, work))
            tick()
        return done

    def _on_threads(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[BlockResult]:
        context, pool = WorkerContext.here(), ThreadPoolExecutor(self.workers.count)
        try:
            futures = [pool.submit(perform_at, context, block, work) for block, work in blocks]
            for future in as_completed(futures):
                future.result()
                tick()
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)

    def _on_dask(self, blocks: Sequence[tuple[Block, Work]], tick: Callable[[], object]) -> list[BlockResult]:
        context = WorkerContext.here()
        with dask_client(self.workers) as client:
            from distributed import as_completed as as_dask_completes

            futures = [client.submit(attempt_at, context, block, work, pure=False) for block, work in blocks]
            for future in as_dask_completes(futures):
                if isinstance(ended := future.result(), Exception):
                    raise ended
                tick()
            return [future.result() for future in futures]
