"""A model of which one transformer block at a time is in memory, run block by block by its own forward.

To run block b, its weights are read from the checkpoint and the model's own forward is called: blocks before b return
their input unchanged, the input of block b is replaced by the given hidden states, and the forward ends when b has
returned. So every block gets its masks and positions from the model itself, whatever the architecture and the
transformers release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.errors import ArchitectureError
from stages.models.loading.checkpoint import Checkpoint
from stages.models.loading.compute import dtype_of, settle_vector_math
from stages.models.loading.load import longest_input
from stages.models.loading.skeleton import build_skeleton, forward_as
from stages.models.streaming.weights import StoredWeights
from stages.models.structure import Linear, find_blocks, linears_of, weights_of


class EndForward(Exception):
    """Raised in a hook to end a model's forward early; `value` is what the forward then returns."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class StreamedModel:
    """The causal language model in `folder`, its blocks loaded one at a time.

    Attributes: checkpoint; weights, its tensors (StoredWeights); dtype and device of the computation; blocks, how many
    there are; prefix, dotted name of the list of blocks.
    """

    def __init__(
        self, folder: Path, device: torch.device, dtype: str = "auto", trust_remote_code: bool = False
    ) -> None:
        settle_vector_math()
        self.checkpoint, self.device, self._trusts = Checkpoint(folder), device, trust_remote_code
        self.dtype = dtype_of(dtype, self.checkpoint.dtype())
        self._model = build_skeleton(folder, self.dtype, trust_remote_code)
        for part in self._model.modules():
            part._buffers.update({n: b if b is None else b.to(device) for n, b in part._buffers.items()})
        self.prefix, self._blocks = find_blocks(self._model)
        self.blocks = len(self._blocks)
        self.weights = StoredWeights(self.checkpoint, self._model, device, self.dtype)
        self._returns_tuples: bool | None = None
        self._entering: Tensor | None = None

    def in_dtype(self, dtype: str) -> StreamedModel:
        """The same model, to be run in another dtype."""
        return StreamedModel(self.checkpoint.folder, self.device, dtype, self._trusts)

    def linears(self, index: int) -> list[Linear]:
        """The linears of block `index`."""
        return linears_of(self._blocks[index], self.prefix, index)

    def block_weights(self, index: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of block `index` that have two or more dimensions, by name."""
        return weights_of(self._blocks[index], self.prefix, index)

    def module(self, name: str) -> nn.Module:
        """The module with this dotted name; the whole model for an empty one."""
        return self._model.get_submodule(name)

    @property
    def config(self) -> Any:
        """The configuration of the language model (its text part in a multimodal model)."""
        return self._model.config.get_text_config()

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.config.hidden_size)

    @property
    def positions(self) -> int | None:
        """How many positions the model was made for, or None where its configuration does not say."""
        return longest_input(self._model)

    @contextmanager
    def loaded(self, index: int, replaced: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Context in which block `index` has its weights and can be run; see StoredWeights.lent_block."""
        passed = _pass_through_in_tuple if index > 0 and self._blocks_return_tuples() else _pass_through
        block = self._blocks[index]
        with ExitStack() as stack:
            stack.enter_context(self.weights.lent_block(index, replaced))
            for earlier in self._blocks[:index]:
                stack.enter_context(forward_as(earlier, passed))
            stack.callback(block.register_forward_pre_hook(self._substitute, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(_end_with_output).remove)
            yield

    @contextmanager
    def attending_with(self, name: str) -> Iterator[None]:
        """The model with another of transformers' attention functions."""
        before = self._model.config._attn_implementation
        self._model.set_attn_implementation(name)
        try:
            yield
        finally:
            self._model.set_attn_implementation(before)

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Iterator[Tensor]:
        """Hidden states (1, length, width) entering block 0, for each row of token ids (sequences, length)."""

        def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise EndForward(args[0] if args else kwargs["hidden_states"])

        with ExitStack() as stack:
            stack.enter_context(self.weights.lent_embeddings())
            stack.callback(self._blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
            for row in tokens.split(1):
                yield _forward(self._model, input_ids=row.to(self.device))

    def run(self, index: int, states: Tensor) -> Tensor:
        """Output of block `index`, which must be loaded, for `states` (sequences, length, width).

        Differentiable if `states` require gradients.
        """
        output = self.run_inside(index, states)
        if output is None:
            raise ArchitectureError(f"{type(self._model).__name__}: the forward did not reach block {index}")
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        return hidden

    def run_inside(self, index: int, states: Tensor) -> Any:
        """What the loaded block returns, or the value that a hook inside it ended the forward with (EndForward)."""
        self._entering = entering = states.to(self.device, self.dtype)
        with torch.set_grad_enabled(states.requires_grad):
            return _forward(self._model, inputs_embeds=_placeholder(self._model, entering))

    @contextmanager
    def ended(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """A function from states (sequences, length, width) that left the last block to logits: norm and head.

        Differentiable if the states require gradients.
        """
        passed = _pass_through_in_tuple if self._blocks_return_tuples() else _pass_through

        def logits(states: Tensor) -> Tensor:
            self._entering = entering = states.to(self.device, self.dtype)
            with torch.set_grad_enabled(states.requires_grad):
                placeholder = _placeholder(self._model, entering)
                scores: Tensor = self._model(inputs_embeds=placeholder, use_cache=False).logits
            return scores

        with ExitStack() as stack:
            stack.enter_context(self.weights.lent_embeddings())
            for block in self._blocks:
                stack.enter_context(forward_as(block, passed))
            stack.callback(self._blocks[0].register_forward_pre_hook(self._substitute, with_kwargs=True).remove)
            yield logits

    @torch.no_grad()
    def logits(self, tokens: Tensor, replaced: Callable[[int], Mapping[str, Tensor]] | None = None) -> Tensor:
        """Logits (sequences, length, vocabulary), blocks loaded as the forward reaches them.

        replaced: from a block's index to the tensors that differ from the checkpoint's, by parameter name.
        """
        with ExitStack() as stack:
            stack.enter_context(self.weights.lent_embeddings())
            for index, block in enumerate(self._blocks):
                stack.enter_context(forward_as(block, self.weights.lending_forward(index, replaced)))
            logits: Tensor = self._model(input_ids=tokens.to(self.device), use_cache=False).logits
        return logits

    def _substitute(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Arguments of the loaded block with its hidden states replaced by those that `run_inside` was given."""
        states, self._entering = self._entering, None
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    def _blocks_return_tuples(self) -> bool:
        """Whether blocks return (states, ...) instead of states: determined once, from block 0."""
        if self._returns_tuples is None:
            with self.loaded(0):
                self._returns_tuples = isinstance(self.run_inside(0, torch.zeros(1, 2, self.width)), tuple)
        return self._returns_tuples


def _placeholder(model: PreTrainedModel, states: Tensor) -> Tensor:
    """Zero embeddings (sequences, length, their width), without memory of their own, to start a forward for `states`.

    states: hidden states (sequences, length, width), on the device and in the dtype of the computation.
    """
    width = model.get_input_embeddings().embedding_dim
    return states.new_zeros(1, 1, 1).expand(*states.shape[:2], width)


def _forward(model: PreTrainedModel, **inputs: Tensor) -> Any:
    """The value that a hook ended the forward with; None where the forward came to its end."""
    try:
        model(**inputs, use_cache=False)
    except EndForward as ended:
        return ended.value
    return None


def _end_with_output(block: nn.Module, args: Any, output: Any) -> None:
    raise EndForward(output)


def _pass_through(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return hidden_states


def _pass_through_in_tuple(hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor]:
    return (hidden_states,)
