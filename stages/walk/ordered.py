"""A visit to one block on the walk: what enters its linears, group by group, while their weights change.

The block runs once. Statistics of a group are taken when all chunks stand before it; what is put into the
block then is what the groups after it see, and what leaves the block at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from stages.artifacts.activations import read_sequences, states_shape, writer_of
from stages.linalg.correction import OutputErrorMoments
from stages.linalg.gram import CrossSum, GramSum
from stages.models.loading.memory import return_freed_memory
from stages.models.streaming.capture import input_groups, writes_to_residual
from stages.models.streaming.stepwise import Stepwise, Stop
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear
from stages.walk.forward import in_dtype
from stages.walk.held_out import split_chunk
from stages.walk.statistics import InputStatistics


@dataclass(frozen=True)
class Stream:
    """Hidden states entering a block in a file, and the model that runs on them."""

    model: StreamedModel
    states: Path


class OrderedBlockWalk:
    """A context in which block `index` is loaded and runs in steps.

    pruned: the stream of the model that is being pruned; put weights into `pruned.model`.
    dense:  the dense model's, another StreamedModel, where the two are to be compared.
    chunk:  sequences processed together; dtype: of the sums; memory: see Stepwise.
    """

    def __init__(
        self, index: int, pruned: Stream, dense: Stream | None, chunk: int, dtype: torch.dtype, memory: float
    ) -> None:
        self._index, self._pruned, self._dense = index, pruned, dense
        self._chunk, self._dtype, self._memory = chunk, dtype, memory
        self._sequences = states_shape(pruned.states)[0]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        model = self._pruned.model
        self._stack.enter_context(model.loaded(self._index))
        self._groups = input_groups(model, self._index, read_sequences(self._pruned.states, 0, 1))
        self._to_residual = [False] * len(self._groups)
        if self._dense is not None:
            self._to_residual = writes_to_residual(model, self._index, self._groups)
            self._stack.enter_context(self._dense.model.loaded(self._index))
            self._dense_steps = self._stack.enter_context(self._stepwise(self._dense))
        self._steps = self._stack.enter_context(self._stepwise(self._pruned))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def statistics(self) -> Iterator[InputStatistics]:
        """Statistics of each group, in the order they are called, with all weights put so far."""
        for group, linears in enumerate(self._groups):
            found = self._alone(group, linears) if self._dense is None else self._compared(group, linears, self._dense)
            if self._dense is not None and group + 1 == len(self._groups):
                self._dense_steps.release()
            return_freed_memory()
            yield found
            return_freed_memory()

    def write(self, target: Path, file_format: str, dtype: torch.dtype) -> None:
        """Write what leaves the block, with all weights put."""
        with writer_of(target, file_format, states_shape(self._pruned.states), dtype) as writer:
            for states in self._steps.outputs():
                writer.append(in_dtype(states, dtype, f"block {self._index} gives"))

    def _stepwise(self, stream: Stream) -> Stepwise:
        chunks = -(-self._sequences // self._chunk)
        memory = self._memory if self._dense is None else self._memory / 2
        read = partial(self._read, stream.states)
        return Stepwise(stream.model, self._index, read, chunks, self._groups, self._to_residual, memory)

    def _read(self, states: Path, chunk: int) -> Tensor:
        start = chunk * self._chunk
        return read_sequences(states, start, min(start + self._chunk, self._sequences))

    def _alone(self, group: int, linears: tuple[Linear, ...]) -> InputStatistics:
        total = self._no_gram(linears)
        for stop in self._steps.stops(group):
            total.add(stop.inputs)
        return InputStatistics.of(linears, total)

    def _compared(self, group: int, linears: tuple[Linear, ...], dense: Stream) -> InputStatistics:
        """The same, and what the linears lack: on most sequences, and on those held out."""
        lacks = OutputErrorSum(linears, dense.model, self._to_residual[group], self._dtype)
        grams = self._no_gram(linears), self._no_gram(linears)
        crosses = self._no_cross(lacks), self._no_cross(lacks)
        start = 0
        for ours, theirs in zip(self._steps.stops(group), self._dense_steps.stops(group), strict=True):
            stop = min(start + self._chunk, self._sequences)
            shares = split_chunk(start, stop, self._sequences)
            x, other = ours.inputs.reshape(stop - start, -1, linears[0].shape[1]), lacks.paired(ours, theirs)
            other = other.reshape(stop - start, -1, other.shape[-1])
            for gram, cross, part, paired in zip(grams, crosses, x.split(shares), other.split(shares), strict=True):
                gram.add(part)
                cross.add(part, paired)
            start = stop
        fit, held = (lacks.shortfall(gram, cross) for gram, cross in zip(grams, crosses, strict=True))
        return InputStatistics.of(linears, grams[0].plus(grams[1]), (fit, held))

    def _no_gram(self, linears: tuple[Linear, ...]) -> GramSum:
        return GramSum.zeros(linears[0].shape[1], self._dtype, self._pruned.model.device)

    def _no_cross(self, lacks: OutputErrorSum) -> CrossSum:
        return CrossSum.zeros(lacks.widths, self._dtype, self._pruned.model.device)


class OutputErrorSum:
    """How the shortfall of some linears is summed.

    For an adder, token by token; for others from the mean of x x₀ᵀ, since W₀ can be applied to the mean.
    In the dtype of the sums: differences of half-precision states, rounded, are mostly noise, or overflow.
    """

    def __init__(self, linears: tuple[Linear, ...], dense: StreamedModel, adds: bool, dtype: torch.dtype) -> None:
        self._weights = [dense.weights.current(linear).to(dtype) for linear in linears]
        self._adds, self._dtype = adds, dtype
        self.widths = linears[0].shape[1], linears[0].shape[0 if adds else 1]

    def paired(self, ours: Stop, theirs: Stop) -> Tensor:
        """What is multiplied with x: δ, or x₀."""
        if not self._adds:
            return theirs.inputs
        lack = self._away(ours.inputs, theirs.inputs) @ self._weights[0].T
        return lack + self._away(ours.stream, theirs.stream).view_as(lack)

    def shortfall(self, gram: GramSum, cross: CrossSum) -> OutputErrorMoments:
        """The means."""
        mean, other = gram.mean_gram(), cross.mean_cross()
        if self._adds:
            return OutputErrorMoments(mean, other)
        return OutputErrorMoments(mean, (other - mean) @ torch.cat(self._weights).T)

    def _away(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return theirs.to(self._dtype) - ours.to(self._dtype)
