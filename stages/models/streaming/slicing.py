"""SliceGPT on the dense model: hooks that project hidden states, and the rotated weights of the sliced model.

Keeping the components x Q of hidden states x is the dense model on x Q Qᵀ. So the dense blocks themselves, with
projections before their two norms, compute what the sliced model does, in the dense model's own coordinates
(Ashkboos et al. 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stages.errors import ArchitectureError
from stages.models.classes.sliced import CLASSES
from stages.models.streaming.streamed import EndForward, StreamedModel

NORMS = "input_layernorm", "post_attention_layernorm"
LAST_NORM = "model.norm"
READERS = {"attention.q": 0, "attention.k": 0, "attention.v": 0, "mlp.gate": 1, "mlp.up": 1}
WRITERS = {"attention.o": 0, "mlp.down": 1}
"""By role: the norm (its index in NORMS) whose output a linear reads; the norm before its write to the residual."""


class Bases(NamedTuple):
    """Orthonormal bases (width, kept) of the hidden states entering a block's attention norm and its MLP norm."""

    attention: Tensor
    mlp: Tensor


def check_sliceable(model: StreamedModel) -> None:
    """Raise ArchitectureError for a model whose type SliceGPT cannot slice here."""
    kind = model.config.model_type
    if kind not in CLASSES:
        raise ArchitectureError(
            f"slicegpt slices {', '.join(sorted(CLASSES))}, whose RMS norms stand before attention and MLP, got "
            f"{kind}: use a method of whole units (flap, newton, obs_units) or a layer-wise one"
        )


def project(states: Tensor, basis: Tensor) -> Tensor:
    """x Q Qᵀ for states x (..., width) and a basis Q (width, kept), in float32 at least."""
    wide = torch.promote_types(states.dtype, torch.float32)
    basis = basis.to(states.device, wide)
    return ((states.to(wide) @ basis) @ basis.T).to(states.dtype)


@contextmanager
def projecting(
    model: StreamedModel, bases: Callable[[int], Bases], blocks: range, final: Tensor | None = None
) -> Iterator[None]:
    """Context in which the dense model computes what the sliced one does: `blocks` project their residual stream.

    bases: from a block's index to its bases; final: basis of the states entering the last norm, where they are sliced.
    """
    with ExitStack() as stack:
        for index in blocks:
            for which in range(len(NORMS)):
                basis = partial(_basis_of, bases, index, which)
                stack.callback(_norm(model, index, which).register_forward_pre_hook(_projects(basis)).remove)
        if final is not None:
            stack.callback(model.module(LAST_NORM).register_forward_pre_hook(_projects(lambda: final)).remove)
        yield


def _basis_of(bases: Callable[[int], Bases], index: int, which: int) -> Tensor:
    return bases(index)[which]


def _projects(basis: Callable[[], Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A hook that projects a norm's input in place, since the same tensor is the residual connection's."""

    def enter(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].copy_(project(args[0], basis()))

    return enter


@contextmanager
def stopping_between(model: StreamedModel, index: int) -> Iterator[Callable[[Tensor], Tensor]]:
    """A function from states entering the loaded block `index` to those entering its MLP's norm."""

    def stop(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        raise EndForward(args[0])

    handle = _norm(model, index, 1).register_forward_pre_hook(stop)
    try:
        yield lambda states: model.run_inside(index, states)
    finally:
        handle.remove()


def sliced_block(model: StreamedModel, index: int, bases: Bases, leaving: Tensor | None) -> dict[str, Tensor]:
    """Parameters of block `index` of the sliced model, by name, in float64.

    leaving: (width, kept) basis of the block's output states; None for the dense model's own coordinates.
    """
    after = torch.eye(model.width, dtype=torch.float64) if leaving is None else leaving
    start, sliced = f"{model.prefix}.{index}.", dict[str, Tensor]()
    stored = {name: tensor.double() for name, tensor in model.weights.stored_block(index).items()}
    scales = [stored.pop(f"{start}{norm}.weight") for norm in NORMS]
    for linear in model.linears(index):
        weight, bias = stored.pop(linear.tensor), stored.pop(f"{linear.name}.bias", None)
        if linear.role in READERS:
            # The norm has no scale in the sliced model: it is folded into the linears that read the norm.
            norm = READERS[linear.role]
            weight = (weight * scales[norm]) @ bases[norm]
        else:
            out = (bases.mlp, after)[WRITERS[linear.role]]
            weight, bias = out.T @ weight, None if bias is None else out.T @ bias
        sliced[linear.tensor] = weight
        if bias is not None:
            sliced[f"{linear.name}.bias"] = bias
    # A residual connection takes states from the basis before it to the one after it: x Q₁ (Q₁ᵀ Q₂), stored transposed.
    sliced[f"{start}attention_shortcut.weight"] = bases.mlp.T @ bases.attention
    sliced[f"{start}mlp_shortcut.weight"] = after.T @ bases.mlp
    return sliced | stored


def _norm(model: StreamedModel, index: int, which: int) -> nn.Module:
    return model.module(f"{model.prefix}.{index}.{NORMS[which]}")
