"""Queries and keys of a block as the model itself hands them to its attention: normed, rotated, grouped.

transformers lets an attention function be chosen by name. Ours computes nothing: it ends the forward with what it
was given. So whatever a model does to its queries and keys is done by the model, and can be differentiated.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from stages.errors import ArchitectureError
from stages.models.loading.skeleton import forward_as
from stages.models.roles import KEY, QUERY, VALUE
from stages.models.streaming.streamed import Finished, StreamedModel
from stages.models.structure import Linear

NAME = "secateur_asked"
MASK = "attention_mask"


class Asked(NamedTuple):
    """query: (sequences, heads, n, d_head), key: (sequences, key heads, n, d_head); mask: added to the logits,
    (sequences or 1, 1, n, n), or None; scaling: of the logits; softcap: of the scaled logits, or None."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    softcap: float | None


class Call(NamedTuple):
    """What a block's attention is called with for some sequences."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AttentionProbe:
    """A context in which block `index` of `model` is loaded and its attention can be asked for queries and keys.

    `model` must not be in another context at that time. linears: its q and k.

    Queries and keys are made in the dtype of the weights of q and k that are tried, float32 or float64, whatever the
    model's: what enters the attention is the model's own, in its dtype, and is widened with the biases and norms of
    the attention. In half precision steps smaller than 2⁻⁸ of a weight would be lost, and gradients vanish in
    float16. It costs no second block: the weights tried are in memory already, and those of v and o are not widened.
    """

    def __init__(self, model: StreamedModel, index: int) -> None:
        self._model, self._index = model, index
        self.linears = query_and_key(model, index)
        name = self.linears[0].name.rpartition(".")[0]
        self._attention = model.module(name)
        self._weights = {linear.tensor.removeprefix(f"{name}.") for linear in model.linears(index)}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._model.attending_with(NAME))
        self._stack.enter_context(self._model.loaded(self._index))
        for linear in self._model.linears(self._index):
            if linear.role == VALUE:
                self._stack.enter_context(forward_as(self._model.module(linear.name), partial(_zeros, linear.shape[0])))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stack.close()

    def call(self, states: Tensor) -> Call:
        """What the attention is called with for hidden states (sequences, n, width) entering the block."""

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise Finished(Call(args, kwargs))

        handle = self._attention.register_forward_pre_hook(note, with_kwargs=True)
        try:
            found: Call = self._model.run_inside(self._index, states)
        finally:
            handle.remove()
        return found

    def asked(self, call: Call, weights: Mapping[Linear, Tensor]) -> Asked:
        """Queries and keys with other weights (d_out, d_in) of q and k, in which they can be differentiated.

        weights: all in one dtype, that of the result but for its mask.

        Raises ArchitectureError where the model's attention does not ask the function it is told to use.
        """
        dtype, inner = next(iter(weights.values())).dtype, dict[str, Tensor]()
        for name, value in (*self._attention.named_parameters(), *self._attention.named_buffers()):
            if name not in self._weights and value.is_floating_point():
                inner[name] = value.to(dtype)
        for linear, weight in weights.items():
            inner[f"{linear.name.rpartition('.')[2]}.weight"] = linear.weight(weight)
        # The mask stays: what it excludes is told by the lowest number of its own dtype.
        kwargs = {name: value if name == MASK else _widened(value, dtype) for name, value in call.kwargs.items()}
        try:
            functional_call(self._attention, inner, _widened(call.args, dtype), kwargs)
        except Finished as finished:
            found: Asked = finished.found
            return found
        raise ArchitectureError(
            f"{type(self._attention).__name__} does not use transformers' attention functions: its attention "
            "matrix cannot be reached; use a layer-wise method for attention.q and attention.k"
        )


def _widened(values: Any, dtype: torch.dtype) -> Any:
    """Whatever tensors of floats are in `values`, nested, in this dtype."""
    return tree_map_only(Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, values)


def _zeros(width: int, inputs: Tensor) -> Tensor:
    """Values that no one looks at, for nothing."""
    return inputs.new_zeros(()).expand(*inputs.shape[:-1], width)


def query_and_key(model: StreamedModel, index: int) -> tuple[Linear, Linear]:
    """The linears of q and k of a block; raises ArchitectureError where they are not linears of their own."""
    found = {linear.role: linear for linear in model.linears(index) if linear.role in (QUERY, KEY)}
    if len(found) != 2:
        roles = ", ".join(sorted({linear.role for linear in model.linears(index)}))
        raise ArchitectureError(
            f"block {index} has no linears {QUERY} and {KEY} of their own (it has {roles}): methods of the attention "
            "matrix cannot prune it; use a layer-wise method"
        )
    return found[QUERY], found[KEY]


def _stop(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> None:
    if s_aux is not None:
        raise ArchitectureError(f"{type(module).__name__} adds a sink to its softmax, which is not supported")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    raise Finished(Asked(query, key, attention_mask, scaling, softcap))


AttentionInterface.register(NAME, _stop)
AttentionMaskInterface.register(NAME, eager_mask)
