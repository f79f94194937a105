"""Sequential calibration inside one block: input statistics of each group of linears after those before it are pruned.

The block runs once, stopped before every group of linears that share an input. The statistics of a group are summed
when all chunks have reached it; the weights put into the block then are what the groups after it see, and what the
block's output is made with.
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
    """A model and the file of the hidden states that enter one of its blocks."""

    model: StreamedModel
    states: Path


class OrderedBlockWalk:
    """Context that runs block `index` group by group of its linears, whose weights may be replaced between groups.

    pruned: the model that is being pruned; put solved weights into `pruned.model.weights`.
    dense:  the dense model, another StreamedModel, where output errors against it are wanted.
    chunk:  sequences processed together; dtype: of the sums; memory: bytes for stopped forwards, see Stepwise.
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
        """Input statistics of each group, in the order the groups are called, given all weights put so far."""
        for group, linears in enumerate(self._groups):
            if self._dense is None:
                statistics = self._input_statistics(group, linears)
            else:
                statistics = self._compared_statistics(group, linears, self._dense)
            if self._dense is not None and group + 1 == len(self._groups):
                self._dense_steps.release()
            return_freed_memory()
            yield statistics
            return_freed_memory()

    def write(self, target: Path, file_format: str, dtype: torch.dtype) -> None:
        """Write the block's output, hidden states (sequences, length, width), given all weights put."""
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

    def _input_statistics(self, group: int, linears: tuple[Linear, ...]) -> InputStatistics:
        total = self._no_gram(linears)
        for stop in self._steps.stops(group):
            total.add(stop.inputs)
        return InputStatistics.of(linears, total)

    def _compared_statistics(self, group: int, linears: tuple[Linear, ...], dense: Stream) -> InputStatistics:
        """Input statistics with output errors against the dense model, on fitted and on held-out sequences."""
        errors = OutputErrorSum(linears, dense.model, self._to_residual[group], self._dtype)
        grams = self._no_gram(linears), self._no_gram(linears)
        crosses = self._no_cross(errors), self._no_cross(errors)
        start = 0
        for ours, theirs in zip(self._steps.stops(group), self._dense_steps.stops(group), strict=True):
            stop = min(start + self._chunk, self._sequences)
            shares = split_chunk(start, stop, self._sequences)
            x, y = ours.inputs.reshape(stop - start, -1, linears[0].shape[1]), errors.partner(ours, theirs)
            y = y.reshape(stop - start, -1, y.shape[-1])
            for gram, cross, some_x, some_y in zip(grams, crosses, x.split(shares), y.split(shares), strict=True):
                gram.add(some_x)
                cross.add(some_x, some_y)
            start = stop
        fit, held = (errors.moments(gram, cross) for gram, cross in zip(grams, crosses, strict=True))
        return InputStatistics.of(linears, grams[0].plus(grams[1]), (fit, held))

    def _no_gram(self, linears: tuple[Linear, ...]) -> GramSum:
        return GramSum.zeros(linears[0].shape[1], self._dtype, self._pruned.model.device)

    def _no_cross(self, errors: OutputErrorSum) -> CrossSum:
        return CrossSum.zeros(errors.widths, self._dtype, self._pruned.model.device)


class OutputErrorSum:
    """Accumulates E[x δᵀ], δ = output error against the dense model, of linears that share the input x.

    A linear that writes to the residual stream h has δ = W₀ (x₀ - x) + h₀ - h (linalg/correction.py), summed token by
    token. Any other has δ = W₀ (x₀ - x), so that E[x δᵀ] = (E[x x₀ᵀ] - E[x xᵀ]) W₀ᵀ: x xᵀ and x x₀ᵀ are summed and
    W₀ is applied to the mean. In the dtype of the sums: differences of half-precision states, rounded, are mostly
    noise, or overflow.

    dense: the dense model, its block loaded; residual: whether the (single) linear writes to the residual stream.
    Attributes: widths, (of x, of its partner).
    """

    def __init__(self, linears: tuple[Linear, ...], dense: StreamedModel, residual: bool, dtype: torch.dtype) -> None:
        self._weights = [dense.weights.current(linear).to(dtype) for linear in linears]
        self._residual, self._dtype = residual, dtype
        self.widths = linears[0].shape[1], linears[0].shape[0 if residual else 1]

    def partner(self, ours: Stop, theirs: Stop) -> Tensor:
        """The y of the sum over tokens of x yᵀ: δ of a linear that writes to the residual stream, x₀ of others."""
        if not self._residual:
            return theirs.inputs
        error = self._difference(ours.inputs, theirs.inputs) @ self._weights[0].T
        return error + self._difference(ours.stream, theirs.stream).view_as(error)

    def moments(self, gram: GramSum, cross: CrossSum) -> OutputErrorMoments:
        """E[x xᵀ] and E[x δᵀ] from the sums of x xᵀ and x yᵀ."""
        mean, other = gram.mean_gram(), cross.mean_cross()
        if self._residual:
            return OutputErrorMoments(mean, other)
        return OutputErrorMoments(mean, (other - mean) @ torch.cat(self._weights).T)

    def _difference(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return theirs.to(self._dtype) - ours.to(self._dtype)
