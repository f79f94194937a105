"""Queries and keys of a block for candidate weights of q and k, after the model's own norms and rotary embedding.

transformers lets an attention function be chosen by name. The one registered here computes nothing: it ends the
forward with the queries, keys and mask that it was given. So whatever a model does to its queries and keys is done by
the model, and can be differentiated.
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
from stages.models.streaming.streamed import EndForward, StreamedModel
from stages.models.structure import Linear

RETURN_QUERIES_AND_KEYS = "secateur_return_queries_and_keys"
"""Name of an attention function that ends the forward with the QueriesAndKeys it was given."""
MASK = "attention_mask"


class QueriesAndKeys(NamedTuple):
    """What a model hands to its attention function, but for the values.

    query:   (sequences, heads, n, d_head); key: (sequences, key heads, n, d_head).
    mask:    added to the logits, (sequences or 1, 1, n, n), or None.
    scaling: of the logits; softcap: of the scaled logits, or None.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    softcap: float | None


class Call(NamedTuple):
    """Arguments that a block calls its attention module with for some sequences."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AttentionProbe:
    """Context that loads block `index` of `model` and computes its queries and keys for other weights of q and k.

    `model` must not be in another context at that time. linears: the block's q and k.

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
        self._stack.enter_context(self._model.attending_with(RETURN_QUERIES_AND_KEYS))
        self._stack.enter_context(self._model.loaded(self._index))
        for linear in self._model.linears(self._index):
            if linear.role == VALUE:
                self._stack.enter_context(forward_as(self._model.module(linear.name), partial(_zeros, linear.shape[0])))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stack.close()

    def call(self, states: Tensor) -> Call:
        """Arguments of the attention module for hidden states (sequences, n, width) entering the block."""

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise EndForward(Call(args, kwargs))

        handle = self._attention.register_forward_pre_hook(note, with_kwargs=True)
        try:
            call: Call = self._model.run_inside(self._index, states)
        finally:
            handle.remove()
        return call

    def queries_and_keys(self, call: Call, weights: Mapping[Linear, Tensor]) -> QueriesAndKeys:
        """Queries and keys for other weights (d_out, d_in) of q and k; differentiable in these weights.

        weights: all in one dtype, that of the result but for its mask.

        Raises ArchitectureError where the model's attention does not call transformers' attention functions.
        """
        dtype, inner = next(iter(weights.values())).dtype, dict[str, Tensor]()
        for name, value in (*self._attention.named_parameters(), *self._attention.named_buffers()):
            if name not in self._weights and value.is_floating_point():
                inner[name] = value.to(dtype)
        for linear, weight in weights.items():
            inner[f"{linear.name.rpartition('.')[2]}.weight"] = linear.weight(weight)
        # The mask keeps its dtype: excluded keys are recognised by the lowest number of that dtype.
        kwargs = {name: value if name == MASK else _widened(value, dtype) for name, value in call.kwargs.items()}
        try:
            functional_call(self._attention, inner, _widened(call.args, dtype), kwargs)
        except EndForward as ended:
            queries_and_keys: QueriesAndKeys = ended.value
            return queries_and_keys
        raise ArchitectureError(
            f"{type(self._attention).__name__} does not use transformers' attention functions: its attention "
            "matrix cannot be reached; use a layer-wise method for attention.q and attention.k"
        )


def _widened(values: Any, dtype: torch.dtype) -> Any:
    """`values`, a nested structure, with its floating-point tensors cast to `dtype`."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, values)


def _zeros(width: int, inputs: Tensor) -> Tensor:
    """Zeros (..., width) without memory of their own: a forward in place of v's, whose values are never read."""
    return inputs.new_zeros(()).expand(*inputs.shape[:-1], width)


def query_and_key(model: StreamedModel, index: int) -> tuple[Linear, Linear]:
    """The linears q and k of a block; raises ArchitectureError where the block fuses them or has none."""
    by_role = {linear.role: linear for linear in model.linears(index) if linear.role in (QUERY, KEY)}
    if len(by_role) != 2:
        roles = ", ".join(sorted({linear.role for linear in model.linears(index)}))
        raise ArchitectureError(
            f"block {index} has no linears {QUERY} and {KEY} of their own (it has {roles}): methods of the attention "
            "matrix cannot prune it; use a layer-wise method"
        )
    return by_role[QUERY], by_role[KEY]


def _return_queries_and_keys(
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
    raise EndForward(QueriesAndKeys(query, key, attention_mask, scaling, softcap))


AttentionInterface.register(RETURN_QUERIES_AND_KEYS, _return_queries_and_keys)
AttentionMaskInterface.register(RETURN_QUERIES_AND_KEYS, eager_mask)
