"""The tensors of a model that is built without memory: read from its checkpoint, lent to its modules, taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.models.loading.checkpoint import Checkpoint
from stages.models.loading.memory import return_freed_memory
from stages.models.loading.names import stored_names
from stages.models.loading.skeleton import lend, take_back
from stages.models.structure import Linear, find_blocks, linears_of


class StoredWeights:
    """Reads a model's tensors from its checkpoint and lends them to its modules, one block at a time.

    model:  parameters on the meta device (skeleton.build_skeleton); those outside the blocks but for input and output
            embeddings are lent at once and stay.
    device, dtype: of lent tensors, both of the computation.

    Attributes: checkpoint; names, the stored tensor of each parameter; dtype, the checkpoint's own.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: PreTrainedModel, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.checkpoint, self.dtype = checkpoint, checkpoint.dtype()
        self.names = stored_names(model, checkpoint.files)
        self._model, self._device, self._lent_dtype = model, device, dtype
        self._prefix, self._blocks = find_blocks(model)
        self._added_biases: dict[str, nn.Module] = {}
        self._lend_outside(embeddings=False)

    @property
    def parameter_count(self) -> int:
        """Number of parameters of the model; tied ones count once."""
        self._model.tie_weights()
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def block_parameter_count(self) -> int:
        """Number of parameters of all blocks together."""
        return sum(parameter.numel() for parameter in self._blocks.parameters())

    def stored_block(self, index: int) -> dict[str, Tensor]:
        """All parameters of block `index` by name, as the checkpoint holds them, on the CPU."""
        return self._read(f"{self._prefix}.{index}.{name}" for name in self._blocks[index].state_dict())

    def stored_parameter(self, name: str) -> Tensor:
        """A parameter as the checkpoint holds it, on the CPU."""
        return self._read([name])[name]

    def stored(self, linear: Linear) -> Tensor:
        """Weight (d_out, d_in) of a linear as the checkpoint holds it, on the CPU."""
        return linear.weight(self.stored_parameter(linear.tensor))

    def stored_bias(self, linear: Linear) -> Tensor:
        """Bias (d_out,) of a linear as the checkpoint holds it, on the CPU; zeros where it has none."""
        if not self.has_bias(linear):
            return torch.zeros(linear.shape[0], dtype=self.dtype)
        return self.stored_parameter(f"{linear.name}.bias")

    def has_bias(self, linear: Linear) -> bool:
        """Whether a linear of the dense model has a bias; one added by `put_bias` or `lent_block` does not count."""
        added = linear.name in self._added_biases
        return not added and getattr(self._model.get_submodule(linear.name), "bias", None) is not None

    def current(self, linear: Linear) -> Tensor:
        """Weight (d_out, d_in) that a linear of the loaded block has now."""
        return linear.weight(self._model.get_parameter(linear.tensor))

    def put(self, linear: Linear, weight: Tensor) -> None:
        """Replace the weight (d_out, d_in) of a linear of the loaded block."""
        self._lend_to(linear, "weight", linear.weight(weight).contiguous())

    def put_bias(self, linear: Linear, bias: Tensor) -> None:
        """Replace the bias (d_out,) of a linear of the loaded block, or add one until the block is taken back."""
        self._make_room_for_bias(linear)
        self._lend_to(linear, "bias", bias)

    @contextmanager
    def lent_block(self, index: int, replaced: Mapping[str, Tensor] | None) -> Iterator[None]:
        """Block `index` with its weights in memory; tensors named in `replaced` are taken from there.

        A linear that has no bias is given the one that `replaced` names, for as long as the block is lent.
        """
        block, start = self._blocks[index], f"{self._prefix}.{index}."
        for linear in linears_of(block, self._prefix, index):
            if f"{linear.name}.bias" in (replaced or {}):
                self._make_room_for_bias(linear)
        names = [start + name for name in block.state_dict()]
        ours = {name: tensor for name, tensor in (replaced or {}).items() if name in names}
        tensors = self._read(name for name in names if name not in ours) | ours
        tensors = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
        lend(block, tensors, self._device, self._lent_dtype)
        try:
            yield
        finally:
            take_back(block)
            for name in [name for name in self._added_biases if name.startswith(start)]:
                self._added_biases.pop(name).register_parameter("bias", None)
            return_freed_memory()

    @contextmanager
    def lent_embeddings(self) -> Iterator[None]:
        """The model with its input and output embeddings in memory."""
        self._lend_outside(embeddings=True)
        self._model.tie_weights()
        try:
            yield
        finally:
            for end in (self._model.get_input_embeddings(), self._model.get_output_embeddings()):
                take_back(end)

    def lending_forward(self, index: int, replaced: Callable[[int], Mapping[str, Tensor]] | None) -> Callable[..., Any]:
        """The forward of block `index`, with its weights in memory only while it runs; replaced: see `lent_block`."""
        forward = self._blocks[index].forward

        def lend_and_run(*args: Any, **kwargs: Any) -> Any:
            with self.lent_block(index, replaced and replaced(index)):
                return forward(*args, **kwargs)

        return lend_and_run

    def _make_room_for_bias(self, linear: Linear) -> None:
        module = self._model.get_submodule(linear.name)
        if module.bias is None:
            self._added_biases[linear.name] = module
            module.bias = nn.Parameter(torch.empty(linear.shape[0], device="meta"), requires_grad=False)

    def _lend_to(self, linear: Linear, part: str, value: Tensor) -> None:
        lend(self._model.get_submodule(linear.name), {part: value}, self._device, self._lent_dtype)

    def _lend_outside(self, embeddings: bool) -> None:
        """Lend what lies outside the blocks: the (large) input and output embeddings, or all the rest."""
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        large = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
        state = self._model.state_dict(keep_vars=True)
        names = [
            name
            for name, tensor in state.items()
            if not name.startswith(f"{self._prefix}.") and name in self.names and (id(tensor) in large) == embeddings
        ]
        lend(self._model, self._read(names), self._device, self._lent_dtype)

    def _read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Parameters by name, read under their stored names, each file opened once."""
        stored = {self.names.get(name, name): name for name in names}
        return {stored[tensor]: value for tensor, value in self.checkpoint.read(stored).items()}
