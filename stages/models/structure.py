"""Blocks and linears of a model, found by structure."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stages.errors import ArchitectureError
from stages.models.roles import role_of


@dataclass(frozen=True)
class Linear:
    """A linear of a block.

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
        """Name of its weight in the checkpoint."""
        return f"{self.name}.weight"

    def weight(self, stored: Tensor) -> Tensor:
        """View of the stored tensor as (d_out, d_in); its own inverse."""
        return stored.T if self.transposed else stored


def find_blocks(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list of blocks and its dotted name: as many modules as config.num_hidden_layers, with linears.

    Raises ArchitectureError if there is none.
    """
    expected = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == expected and all(map(_linears_in, module)):
            return name, module
    raise ArchitectureError(
        f"{type(model).__name__}: expected a list of {expected} blocks that hold nn.Linear, found none: only "
        "decoders built that way can be pruned"
    )


def linears_of(block: nn.Module, prefix: str, index: int) -> list[Linear]:
    """The linears of one block, in the order the block declares them."""
    found = []
    for name, module in _linears_in(block).items():
        full, transposed = f"{prefix}.{index}.{name}", isinstance(module, Conv1D)
        d_out, d_in = module.weight.shape[::-1] if transposed else module.weight.shape
        found.append(Linear(full, role_of(name), index, (int(d_out), int(d_in)), transposed))
    return found


def _linears_in(block: nn.Module) -> dict[str, nn.Linear | Conv1D]:
    return {name: module for name, module in block.named_modules() if isinstance(module, nn.Linear | Conv1D)}
