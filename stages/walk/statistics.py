"""Calibration statistics of the inputs of a block's linears: Gram matrix, mean, token count; collected and filed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.activations import read_states
from stages.artifacts.tensorfile import TensorFile, write_tensors
from stages.errors import NotFiniteError
from stages.linalg.correction import OutputErrorMoments
from stages.linalg.gram import GramSum
from stages.models.streaming.capture import feed_inputs, input_groups
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear


@dataclass(frozen=True)
class InputStatistics:
    """Calibration statistics of an input x that linears of a block share.

    linears: their names; gram: (d_in, d_in) mean of x xᵀ over tokens; mean: (d_in,) mean of x; tokens: how many.
    """

    linears: tuple[str, ...]
    gram: Tensor
    mean: Tensor
    tokens: int
    output_errors: tuple[OutputErrorMoments, OutputErrorMoments] | None = None
    """Output errors against the dense model, on fitted and on held-out tokens; None where they are not compared."""

    @classmethod
    def of(
        cls,
        linears: tuple[Linear, ...],
        total: GramSum,
        output_errors: tuple[OutputErrorMoments, OutputErrorMoments] | None = None,
    ) -> InputStatistics:
        """Means from sums over tokens; raises NotFiniteError, naming the linear, where an input is not finite."""
        gram = total.mean_gram()
        if not torch.isfinite(gram).all():
            raise NotFiniteError(
                f"the inputs of {linears[0].name} (block {linears[0].block}) are not finite on this calibration text: "
                "use compute.dtype float32 or bfloat16, or check the model"
            )
        return cls(tuple(linear.name for linear in linears), gram, total.mean(), total.tokens, output_errors)

    def only(self, names: Sequence[str], rows: Mapping[str, int]) -> InputStatistics:
        """The statistics for some of the linears; rows: d_out of each of all linears, in their order."""
        if self.output_errors is None or tuple(names) == self.linears:
            return dataclasses.replace(self, linears=tuple(names))
        fit, held = (
            shortfall.only([name in names for name in self.linears], list(rows.values()))
            for shortfall in self.output_errors
        )
        return dataclasses.replace(self, linears=tuple(names), output_errors=(fit, held))


def collect(model: StreamedModel, index: int, states: Path, chunk: int, dtype: torch.dtype) -> list[InputStatistics]:
    """Statistics of every distinct input of the dense block `index`, run on a file of hidden states.

    dtype: of the sums. Raises NotFiniteError that names
    the linear whose input is not finite.
    """
    with model.loaded(index):
        first = next(read_states(states, 1))
        groups = input_groups(model, index, first)
        sums = [GramSum.zeros(linears[0].shape[1], dtype, model.device) for linears in groups]
        feed_inputs(model, index, read_states(states, chunk), groups, lambda group, inputs: sums[group].add(inputs))
    return [InputStatistics.of(linears, total) for linears, total in zip(groups, sums, strict=True)]


def write_statistics(path: Path, statistics: list[InputStatistics]) -> None:
    """Write a block's statistics to a safetensors file: `<first linear>.gram` and `.mean`, the rest in metadata."""
    tensors, groups = dict[str, Tensor](), {}
    for entry in statistics:
        name = entry.linears[0]
        tensors |= {f"{name}.gram": entry.gram.cpu(), f"{name}.mean": entry.mean.cpu()}
        groups[name] = {"linears": entry.linears, "tokens": entry.tokens}
    write_tensors(path, tensors, {"groups": json.dumps(groups, sort_keys=True)})


def read_statistics(path: Path, device: torch.device) -> list[InputStatistics]:
    """Read a block's statistics, as `write_statistics` wrote them, to `device`."""
    file, statistics = TensorFile(path), []
    for name, facts in json.loads(file.metadata["groups"]).items():
        gram, mean = file.read([f"{name}.gram", f"{name}.mean"]).values()
        statistics.append(InputStatistics(tuple(facts["linears"]), gram.to(device), mean.to(device), facts["tokens"]))
    return statistics
