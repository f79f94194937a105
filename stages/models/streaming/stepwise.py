"""Resumable forwards of one block over many chunks, which stop before each group of linears and go on later.

Between two stops weights may change: so every group reads what the pruned linears before it output, and the block
runs once. A stopped forward is a suspended greenlet, which holds what the rest of its block
needs. What does not fit in memory is run again from the start of the block instead, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from stages.models.streaming.streamed import EndForward, StreamedModel
from stages.models.structure import Linear

HELD_WIDTHS = 4
"""Memory of a stopped forward, in hidden states, beside the input of the group it stopped at: an estimate."""


class Stop(NamedTuple):
    """A forward stopped before `group`.

    inputs: (sequences, length, d_in), what its linears are about to read.
    stream: (sequences, length, width), the residual stream: the block's input states with all outputs added so far.
    """

    group: int
    inputs: Tensor
    stream: Tensor


class Stepwise:
    """Context in which the loaded block `index` runs chunk by chunk, group by group of its linears.

    read:   the hidden states (sequences, length, width) of chunk 0 to chunks - 1.
    groups: linears that share an input, in the order they are called (see capture.input_groups).
    to_residual: for each group, whether its output is added to the hidden states (see capture.writes_to_residual).
    memory: bytes that stopped forwards may hold; the chunks beyond are run again for every group.
    """

    def __init__(
        self,
        model: StreamedModel,
        index: int,
        read: Callable[[int], Tensor],
        chunks: int,
        groups: Sequence[tuple[Linear, ...]],
        to_residual: Sequence[bool],
        memory: float,
    ) -> None:
        self._model, self._index, self._read, self.chunks = model, index, read, chunks
        self._groups, self._to_residual, self._memory = groups, to_residual, memory
        self._stopped: dict[int, greenlet] = {}
        self._streams: dict[int, Tensor] = {}
        self._running, self._wanted = -1, -1
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for group, linears in enumerate(self._groups):
            module = self._model.module(linears[0].name)
            self._stack.callback(module.register_forward_pre_hook(self._stop_at(group)).remove)
            if self._to_residual[group]:
                self._stack.callback(module.register_forward_hook(self._add).remove)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.release()
        self._stack.close()

    def release(self) -> None:
        """End all stopped forwards, which frees their memory."""
        with torch.no_grad():
            for forward in self._stopped.values():
                forward.throw(EndForward)
        self._streams.clear()
        self._stopped.clear()

    def stops(self, group: int) -> Iterator[Stop]:
        """The stop before `group` of every chunk, in order."""
        for chunk in range(self.chunks):
            stop: Stop = self._run(chunk, group)
            yield stop

    def outputs(self) -> Iterator[Tensor]:
        """Output states (sequences, length, width) of the block for every chunk, in order."""
        for chunk in range(self.chunks):
            output = self._run(chunk, len(self._groups))
            yield output[0] if isinstance(output, tuple) else output

    @torch.no_grad()
    def _run(self, chunk: int, wanted: int) -> Any:
        """Run chunk `chunk` up to group `wanted`, or to its end: a Stop, or the block's output.

        Gradients are off here too: a forward that ends while others are stopped inside their own `no_grad` would
        turn them on again.
        """
        forward, self._running = self._stopped.pop(chunk, None), chunk
        if forward is None:
            states = self._read(chunk)
            self._streams[chunk] = states.to(self._model.device, self._model.dtype)
            if not self._fits(states):
                return self._run_again(states, wanted)
            forward = greenlet(self._model.run_inside)
            reached = forward.switch(self._index, states)
        else:
            reached = forward.switch()
        while isinstance(reached, Stop) and reached.group < wanted:
            reached = forward.switch()
        if forward.dead:
            del self._streams[chunk]
        else:
            self._stopped[chunk] = forward
        return reached

    def _run_again(self, states: Tensor, wanted: int) -> Any:
        """`_run` from the start of the block, without a stopped forward that stays in memory."""
        self._wanted = wanted
        try:
            return self._model.run_inside(self._index, states)
        finally:
            self._wanted = -1
            del self._streams[self._running]

    def _fits(self, states: Tensor) -> bool:
        """Whether one more stopped forward stays within the memory limit."""
        widest = max(linears[0].shape[1] for linears in self._groups)
        held = states[..., 0].numel() * (HELD_WIDTHS * states.shape[-1] + widest) * self._model.dtype.itemsize
        return (len(self._stopped) + 1) * held <= self._memory

    def _stop_at(self, group: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """A hook before the first linear of `group` that suspends the forward, or ends it where it is run again."""

        def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
            if self._wanted < 0:
                getcurrent().parent.switch(Stop(group, args[0], self._streams[self._running]))
            elif self._wanted == group:
                raise EndForward(Stop(group, args[0], self._streams[self._running]))

        return stop

    def _add(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """A hook after a linear that writes to the residual stream: adds its output to the stream."""
        stream = self._streams[self._running]
        self._streams[self._running] = stream + output.view_as(stream)
