"""Transformer blocks of a model and the linears inside them, found by structure rather than by name."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stages.errors import ArchitectureError
from stages.models.roles import role_of


@dataclass(frozen=True)
class Linear:
    """One linear of a block: name, role, shape and how its weight is stored.

    name:       dotted name in the model; role: see roles.py; block: index of its block.
    shape:      (d_out, d_in).
    transposed: stored as (d_in, d_out), as GPT-2's Conv1D does.
    """

    name: str
    role: str
    block: int
    shape: tuple[int, int]
    transposed: bool = False

    @property
    def tensor(self) -> str:
        """Name of its weight parameter."""
        return f"{self.name}.weight"

    def weight(self, stored: Tensor) -> Tensor:
        """View of the stored tensor as (d_out, d_in); its own inverse."""
        return stored.T if self.transposed else stored


def find_blocks(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list of transformer blocks and its dotted name: config.num_hidden_layers modules that hold linears.

    Looked for in the text decoder only, so that an encoder or a vision tower of as many blocks is never taken for it.
    Raises ArchitectureError if there is none.
    """
    name = type(model).__name__
    expected = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    if not isinstance(expected, int) or expected < 1:
        raise ArchitectureError(
            f"{name}: num_hidden_layers of its config.json: expected at least 1, got {expected}: use the config.json "
            "that the weights came with"
        )
    inside = {id(module) for module in model.get_decoder().modules()}
    for place, module in model.named_modules():
        of_blocks = isinstance(module, nn.ModuleList) and len(module) == expected and id(module) in inside
        if of_blocks and all(map(_linears_in, module)):
            _check_unshared(name, place, module)
            return place, module
    raise ArchitectureError(
        f"{name}: expected a list of {expected} blocks that hold nn.Linear, found none: only "
        "decoders built that way can be pruned"
    )


def _check_unshared(name: str, place: str, blocks: nn.ModuleList) -> None:
    """Raise ArchitectureError if two blocks share a parameter: pruning one would prune the other unseen."""
    owners = dict[int, str]()
    for index, block in enumerate(blocks):
        own = dict(block.named_parameters())
        for parameter, tensor in own.items():
            if id(tensor) in owners:
                raise ArchitectureError(
                    f"{name}: {place}.{index}.{parameter} is the same parameter as {owners[id(tensor)]}: blocks that "
                    "share weights cannot be pruned one at a time"
                )
        owners |= {id(tensor): f"{place}.{index}.{parameter}" for parameter, tensor in own.items()}


def linears_of(block: nn.Module, prefix: str, index: int) -> list[Linear]:
    """The linears of one block, in the order the block declares them."""
    linears = []
    for name, module in _linears_in(block).items():
        full, transposed = f"{prefix}.{index}.{name}", isinstance(module, Conv1D)
        d_out, d_in = module.weight.shape[::-1] if transposed else module.weight.shape
        linears.append(Linear(full, role_of(name), index, (int(d_out), int(d_in)), transposed))
    return linears


def weights_of(block: nn.Module, prefix: str, index: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a block's weights (parameters with two or more dimensions) by full name, linears' and others'."""
    return {
        f"{prefix}.{index}.{name}": tuple(parameter.shape)
        for name, parameter in block.named_parameters()
        if parameter.ndim >= 2
    }


def _linears_in(block: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    return {name: module for name, module in block.named_modules() if isinstance(module, nn.Linear | Conv1D)}
