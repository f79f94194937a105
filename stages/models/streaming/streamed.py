"""A model of which one block at a time is in memory.

To run block b, its weights are read from the checkpoint and the model's own forward is called:
blocks before b pass their input through, block b receives the hidden states at hand, and the forward
ends when b has answered. So every block gets its masks and positions from the model itself, whatever
the architecture and the transformers release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages.errors import ArchitectureError
from stages.models.loading.checkpoint import Checkpoint
from stages.models.loading.compute import dtype_of, settle_vector_math
from stages.models.loading.load import longest_input
from stages.models.loading.memory import return_freed_memory
from stages.models.loading.names import stored_names
from stages.models.loading.skeleton import build_skeleton, forward_as, lend, take_back
from stages.models.structure import Linear, find_blocks, linears_of, weights_of


class EndForward(Exception):
    """Raised in a hook to end a model's forward early; `value` is what the forward then returns."""

    def __init__(self, value: Any = None) -> None:
        super().__init__()
        self.value = value


class StreamedModel:
    """The causal language model in `folder`, its blocks loaded one at a time.

    Attributes: checkpoint; stored, the checkpoint's dtype; dtype and device of the computation;
    blocks, how many there are; stored_names, the checkpoint's name of each parameter.
    """

    def __init__(
        self, folder: Path, device: torch.device, dtype: str = "auto", trust_remote_code: bool = False
    ) -> None:
        settle_vector_math()
        self.checkpoint, self._trusts = Checkpoint(folder), trust_remote_code
        self.device, self.stored = device, self.checkpoint.dtype()
        self.dtype = dtype_of(dtype, self.stored)
        self._model = build_skeleton(folder, self.dtype, trust_remote_code)
        for part in self._model.modules():
            part._buffers.update({n: b if b is None else b.to(device) for n, b in part._buffers.items()})
        self.stored_names = stored_names(self._model, self.checkpoint.files)
        self._prefix, self._blocks = find_blocks(self._model)
        self.blocks = len(self._blocks)
        self._wraps: bool | None = None
        self._entering: Tensor | None = None
        self._added_biases: dict[str, nn.Module] = {}
        self._lend(self._outside_names(embeddings=False))

    def in_dtype(self, dtype: str) -> StreamedModel:
        """The same model, to be run in another dtype."""
        return StreamedModel(self.checkpoint.folder, self.device, dtype, self._trusts)

    def linears(self, index: int) -> list[Linear]:
        """The linears of block `index`."""
        return linears_of(self._blocks[index], self._prefix, index)

    def block_weights(self, index: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of block `index` that have two or more dimensions, by name."""
        return weights_of(self._blocks[index], self._prefix, index)

    def module(self, name: str) -> nn.Module:
        """The module with this dotted name."""
        return self._model.get_submodule(name)

    @property
    def parameters(self) -> int:
        """How many parameters the model has; tied ones count once."""
        self._model.tie_weights()
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def block_parameters(self) -> int:
        """How many of them its blocks have."""
        return sum(parameter.numel() for parameter in self._blocks.parameters())

    @property
    def config(self) -> Any:
        """The configuration of the language model."""
        return self._model.config.get_text_config()

    def has_bias(self, linear: Linear) -> bool:
        """Whether a linear has a bias."""
        given = linear.name in self._added_biases
        return not given and getattr(self.module(linear.name), "bias", None) is not None

    @property
    def prefix(self) -> str:
        """Dotted name of the list of blocks."""
        return self._prefix

    def stored_block(self, index: int) -> dict[str, Tensor]:
        """All parameters of block `index` by name, as the checkpoint holds them, on the CPU."""
        return self._read(f"{self._prefix}.{index}.{name}" for name in self._blocks[index].state_dict())

    def stored_parameter(self, name: str) -> Tensor:
        """A parameter as the checkpoint holds it, on the CPU."""
        return self._read([name])[name]

    def stored_weight(self, linear: Linear) -> Tensor:
        """Weight (d_out, d_in) of a linear as the checkpoint holds it, on the CPU."""
        return linear.weight(self._read([linear.tensor])[linear.tensor])

    def stored_bias(self, linear: Linear) -> Tensor:
        """Bias (d_out,) of a linear as the checkpoint holds it, on the CPU; zeros where it has none."""
        if not self.has_bias(linear):
            return torch.zeros(linear.shape[0], dtype=self.stored)
        name = f"{linear.name}.bias"
        return self._read([name])[name]

    @contextmanager
    def loaded(self, index: int, replaced: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Block `index` with its weights, to be run; tensors named in `replaced` are taken from there.

        A linear that has no bias is given the one that `replaced` names, for as long as the block is loaded.
        """
        through = _through_in_tuple if index > 0 and self._answers_with_tuple() else _through
        block = self._blocks[index]
        with ExitStack() as stack:
            stack.enter_context(self._with_weights(index, replaced))
            for earlier in self._blocks[:index]:
                stack.enter_context(forward_as(earlier, through))
            stack.callback(block.register_forward_pre_hook(self._substitute, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(_answer).remove)
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

    def weight(self, linear: Linear) -> Tensor:
        """Weight (d_out, d_in) that a linear of the loaded block has now."""
        return linear.weight(self._model.get_parameter(linear.tensor))

    def put(self, linear: Linear, weight: Tensor) -> None:
        """Give a linear of the loaded block another weight (d_out, d_in)."""
        lend(self.module(linear.name), {"weight": linear.weight(weight).contiguous()}, self.device, self.dtype)

    def put_bias(self, linear: Linear, bias: Tensor) -> None:
        """Give a linear of the loaded block another bias (d_out,), or its first, which goes when the block does."""
        self._make_room_for_bias(linear)
        lend(self.module(linear.name), {"bias": bias}, self.device, self.dtype)

    def _make_room_for_bias(self, linear: Linear) -> None:
        module = self.module(linear.name)
        if module.bias is None:
            self._added_biases[linear.name] = module
            module.bias = nn.Parameter(torch.empty(linear.shape[0], device="meta"), requires_grad=False)

    @contextmanager
    def _with_weights(self, index: int, replaced: Mapping[str, Tensor] | None) -> Iterator[None]:
        start = f"{self._prefix}.{index}."
        for linear in self.linears(index):
            if f"{linear.name}.bias" in (replaced or {}):
                self._make_room_for_bias(linear)
        names = [start + name for name in self._blocks[index].state_dict()]
        ours = {name: tensor for name, tensor in (replaced or {}).items() if name in names}
        tensors = self._read(name for name in names if name not in ours) | ours
        tensors = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
        lend(self._blocks[index], tensors, self.device, self.dtype)
        try:
            yield
        finally:
            take_back(self._blocks[index])
            for name in [name for name in self._added_biases if name.startswith(start)]:
                self._added_biases.pop(name).register_parameter("bias", None)
            return_freed_memory()

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Iterator[Tensor]:
        """Hidden states (1, length, width) entering block 0, for each row of token ids (sequences, length)."""

        def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise EndForward(args[0] if args else kwargs["hidden_states"])

        with ExitStack() as stack:
            stack.enter_context(self._embeddings())
            stack.callback(self._blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
            for row in tokens.split(1):
                yield self._forward(input_ids=row.to(self.device))

    def run(self, index: int, states: Tensor) -> Tensor:
        """Output of block `index`, which must be loaded, for `states` (sequences, length, width).

        It can be differentiated if `states` can.
        """
        output = self.run_inside(index, states)
        if output is None:
            raise ArchitectureError(f"{type(self._model).__name__}: the forward did not reach block {index}")
        answered: Tensor = output[0] if isinstance(output, tuple) else output
        return answered

    def run_inside(self, index: int, states: Tensor) -> Any:
        """What the loaded block answers, or what a hook inside it ended the forward with (EndForward)."""
        self._entering = states.to(self.device, self.dtype)
        with torch.set_grad_enabled(states.requires_grad):
            return self._forward(inputs_embeds=self._placeholder(*states.shape[:2]))

    @contextmanager
    def ended(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """A function from states (sequences, length, width) that left the last block to logits: norm and head.

        The logits can be differentiated if the states can.
        """
        through = _through_in_tuple if self._answers_with_tuple() else _through

        def logits(states: Tensor) -> Tensor:
            self._entering = states.to(self.device, self.dtype)
            with torch.set_grad_enabled(states.requires_grad):
                placeholder = self._placeholder(*states.shape[:2])
                found: Tensor = self._model(inputs_embeds=placeholder, use_cache=False).logits
            return found

        with ExitStack() as stack:
            stack.enter_context(self._embeddings())
            for block in self._blocks:
                stack.enter_context(forward_as(block, through))
            stack.callback(self._blocks[0].register_forward_pre_hook(self._substitute, with_kwargs=True).remove)
            yield logits

    @torch.no_grad()
    def logits(self, tokens: Tensor, replaced: Callable[[int], Mapping[str, Tensor]] | None = None) -> Tensor:
        """Logits (sequences, length, vocabulary), blocks loaded as the forward reaches them.

        replaced: gives, for a block, the tensors that differ from the checkpoint's.
        """
        with ExitStack() as stack:
            stack.enter_context(self._embeddings())
            for index, block in enumerate(self._blocks):
                stack.enter_context(forward_as(block, self._loading_forward(index, replaced)))
            logits: Tensor = self._model(input_ids=tokens.to(self.device), use_cache=False).logits
        return logits

    def _loading_forward(
        self, index: int, replaced: Callable[[int], Mapping[str, Tensor]] | None
    ) -> Callable[..., Any]:
        forward = self._blocks[index].forward

        def load_and_run(*args: Any, **kwargs: Any) -> Any:
            with self._with_weights(index, replaced and replaced(index)):
                return forward(*args, **kwargs)

        return load_and_run

    def _substitute(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the loaded block is called with, with the hidden states at hand in their place."""
        states, self._entering = self._entering, None
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    def _answers_with_tuple(self) -> bool:
        """Whether blocks give (states, ...) instead of states: learnt once, from block 0."""
        if self._wraps is None:
            with self.loaded(0):
                self._wraps = isinstance(self.run_inside(0, torch.zeros(1, 2, self.width)), tuple)
        return self._wraps

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.config.hidden_size)

    @property
    def positions(self) -> int | None:
        """How many positions the model was made for, or None where its configuration does not say."""
        return longest_input(self._model)

    def _forward(self, **inputs: Tensor) -> Any:
        try:
            self._model(**inputs, use_cache=False)
        except EndForward as ended:
            return ended.value
        return None

    def _placeholder(self, sequences: int, length: int) -> Tensor:
        """Embeddings of no content, to start a forward whose first blocks are passed through."""
        width = self._model.get_input_embeddings().embedding_dim
        zero = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        return zero.expand(sequences, length, width)

    def _lend(self, names: list[str]) -> None:
        lend(self._model, self._read(names), self.device, self.dtype)

    def _read(self, names: Iterable[str]) -> dict[str, Tensor]:
        stored = {self.stored_names.get(name, name): name for name in names}
        return {stored[tensor]: value for tensor, value in self.checkpoint.read(stored).items()}

    def _outside_names(self, embeddings: bool) -> list[str]:
        """Tensors outside the blocks: the (large) input and output embeddings, or all others."""
        ends = (self._model.get_input_embeddings(), self._model.get_output_embeddings())
        large = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
        state = self._model.state_dict(keep_vars=True)
        return [
            name
            for name, tensor in state.items()
            if not name.startswith(f"{self._prefix}.")
            and name in self.stored_names
            and (id(tensor) in large) == embeddings
        ]

    @contextmanager
    def _embeddings(self) -> Iterator[None]:
        """The model with its input and output embeddings in memory."""
        self._lend(self._outside_names(embeddings=True))
        self._model.tie_weights()
        try:
            yield
        finally:
            for end in (self._model.get_input_embeddings(), self._model.get_output_embeddings()):
                take_back(end)


def _answer(block: nn.Module, args: Any, output: Any) -> None:
    raise EndForward(output)


def _through(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return hidden_states


def _through_in_tuple(hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor]:
    return (hidden_states,)
