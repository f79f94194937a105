"""Statistics of the inputs of a block's linears: Gram matrix, mean, token count; how they are collected and filed."""

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
    """What is known of one input of a block's linears.

    linears: names of the linears that share it; gram: (d_in, d_in) mean of x xᵀ; mean: (d_in,);
    tokens: how many.
    """

    linears: tuple[str, ...]
    gram: Tensor
    mean: Tensor
    tokens: int
    output_errors: tuple[OutputErrorMoments, OutputErrorMoments] | None = None
    """Against the dense model: on the tokens to fit to, and on those held out."""

    @classmethod
    def of(
        cls,
        linears: tuple[Linear, ...],
        total: GramSum,
        output_errors: tuple[OutputErrorMoments, OutputErrorMoments] | None = None,
    ) -> InputStatistics:
        """From the sums; raises NotFiniteError that names the linear."""
        gram = total.mean_gram()
        if not torch.isfinite(gram).all():
            raise NotFiniteError(
                f"the inputs of {linears[0].name} (block {linears[0].block}) are not finite on this calibration text: "
                "use compute.dtype float32 or bfloat16, or check the model"
            )
        return cls(tuple(linear.name for linear in linears), gram, total.mean(), total.tokens, output_errors)

    def only(self, names: Sequence[str], rows: Mapping[str, int]) -> InputStatistics:
        """For some of the linears; `rows` (d_out) of each."""
        if self.output_errors is None or tuple(names) == self.linears:
            return dataclasses.replace(self, linears=tuple(names))
        fit, held = (
            shortfall.only([name in names for name in self.linears], list(rows.values()))
            for shortfall in self.output_errors
        )
        return dataclasses.replace(self, linears=tuple(names), output_errors=(fit, held))


def collect(model: StreamedModel, index: int, states: Path, chunk: int, dtype: torch.dtype) -> list[InputStatistics]:
    """Statistics of every distinct input of block `index`, which is fed the hidden states in a file.

    The block is the checkpoint's; `dtype` is the one sums are kept in. Raises NotFiniteError that names
    the linear whose input is not finite.
    """
    with model.loaded(index):
        first = next(read_states(states, 1))
        groups = input_groups(model, index, first)
        sums = [GramSum.zeros(linears[0].shape[1], dtype, model.device) for linears in groups]
        feed_inputs(model, index, read_states(states, chunk), groups, lambda group, inputs: sums[group].add(inputs))
    return [InputStatistics.of(linears, total) for linears, total in zip(groups, sums, strict=True)]


def write_statistics(path: Path, statistics: list[InputStatistics]) -> None:
    """One file a block: `<first linear>.gram` and `.mean`, the rest in the metadata."""
    tensors, groups = dict[str, Tensor](), {}
    for one in statistics:
        name = one.linears[0]
        tensors |= {f"{name}.gram": one.gram.cpu(), f"{name}.mean": one.mean.cpu()}
        groups[name] = {"linears": one.linears, "tokens": one.tokens}
    write_tensors(path, tensors, {"groups": json.dumps(groups, sort_keys=True)})


def read_statistics(path: Path, device: torch.device) -> list[InputStatistics]:
    """What `write_statistics` wrote, on `device`."""
    file, found = TensorFile(path), []
    for name, facts in json.loads(file.metadata["groups"]).items():
        gram, mean = file.read([f"{name}.gram", f"{name}.mean"]).values()
        found.append(InputStatistics(tuple(facts["linears"]), gram.to(device), mean.to(device), facts["tokens"]))
    return found
