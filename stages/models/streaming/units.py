"""Units of structured pruning: a block's heads (or key-value groups) and MLP channels, and their parameter counts.

A head is its rows of q, k and v and its columns of o; where several query heads share a key and a value, the whole
key-value group is one unit. A channel of an MLP is its rows of gate and up and its column of down. The linear whose
inputs the units are (o, down) is called their sink, the linears whose outputs they are their sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stages.errors import ArchitectureError
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import Linear

Kind = Literal["heads", "channels"]
KINDS: tuple[Kind, ...] = ("heads", "channels")
KeptUnits = Mapping[Kind, Tensor]
"""Which heads and which channels of a block stay: masks (units,) bool by kind, True = kept."""
INTERLEAVED = "query_key_value"
"""Name of a fused linear whose rows go head by head, q, k and v of each; others hold all of q, then k, then v.

GPT-BigCode's do too, under GPT-2's name, if its heads do not share a key."""


@dataclass(frozen=True)
class Units:
    """The heads (or key-value groups), or the MLP channels, of a block.

    sink:       the linear that reads them.
    columns:    (units, columns of each) its inputs that belong to each unit.
    sources:    the linears that make them, with (units, rows of each) their outputs that belong to each unit.
    parameters: of one unit: rows of the sources with their biases, columns of the sink.
    """

    kind: Kind
    block: int
    sink: Linear
    columns: Tensor
    sources: tuple[tuple[Linear, Tensor], ...]
    parameters: int

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.columns)

    def kept_columns(self, keep: Tensor) -> Tensor:
        """Keep mask (d_in,) of the sink's inputs for a keep mask of units (units,)."""
        return _spread(self.columns, keep, self.sink.shape[1])

    def kept_rows(self, keep: Tensor) -> dict[Linear, Tensor]:
        """Keep mask (d_out,) of each source's outputs for a keep mask of units (units,)."""
        return {linear: _spread(rows, keep, linear.shape[0]) for linear, rows in self.sources}


def _spread(indices: Tensor, keep: Tensor, width: int) -> Tensor:
    """Keep mask (width,) of entries from that of units (units,); indices: (units, entries of each)."""
    kept = torch.ones(width, dtype=torch.bool)
    kept[indices[~keep.cpu()].flatten()] = False
    return kept


def units_of(model: StreamedModel, index: int) -> tuple[Units, Units]:
    """The heads and the MLP channels of block `index`.

    Raises ArchitectureError where the roles of its linears, or their shapes, are not those of one attention and
    one MLP.
    """
    by_role: dict[str, Linear] = {}
    for linear in model.linears(index):
        if linear.role in by_role:
            raise _unknown(model, index, f"it has two linears {linear.role}")
        by_role[linear.role] = linear
    return _heads(model, index, by_role), _channels(model, index, by_role)


def parameters_of(units: Iterable[Units]) -> int:
    """Number of parameters of all heads and channels in `units`."""
    return sum(kind.count * kind.parameters for kind in units)


def _heads(model: StreamedModel, index: int, by_role: dict[str, Linear]) -> Units:
    config = model.config
    sink = by_role.get("attention.o")
    heads = int(config.num_attention_heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    fused = by_role.get("attention.qkv")
    parts = [by_role.get(f"attention.{part}") for part in "qkv"]
    if sink is None or (fused is None and None in parts):
        raise _unknown(model, index, f"its linears are {', '.join(sorted(by_role))}")
    width = int(getattr(config, "head_dim", None) or sink.shape[1] // heads)
    rows = [_runs(groups, heads // groups * width), _runs(groups, width), _runs(groups, width)]
    if fused is None:
        sources = [(linear, own) for linear, own in zip(parts, rows, strict=True) if linear is not None]
    elif fused.name.endswith(INTERLEAVED) or getattr(config, "multi_query", None) is False:
        sources = [(fused, _runs(heads, 3 * width))]
        groups = heads
    else:
        starts = (0, heads * width, (heads + groups) * width)
        sources = [(fused, torch.cat([own + start for own, start in zip(rows, starts, strict=True)], 1))]
    for linear, own in sources:
        if own.numel() != linear.shape[0]:
            raise _unknown(
                model, index, f"{linear.name} has {linear.shape[0]} rows where {heads} heads over {groups} keys of "
                f"{width} want {own.numel()}"
            )  # fmt: skip
    _check_beside(model, index, sink, sources, width)
    return _made(model, "heads", index, sink, rows[0] if groups != heads else _runs(heads, width), sources)


def _channels(model: StreamedModel, index: int, by_role: dict[str, Linear]) -> Units:
    sink = by_role.get("mlp.down")
    if sink is None or not ("mlp.up" in by_role or "mlp.gate_up" in by_role):
        raise _unknown(model, index, f"its linears are {', '.join(sorted(by_role))}")
    width = sink.shape[1]
    rows = _runs(width, 1)
    if "mlp.gate_up" in by_role:
        sources = [(by_role["mlp.gate_up"], torch.cat((rows, rows + width), 1))]
    else:
        sources = [(by_role[role], rows) for role in ("mlp.gate", "mlp.up") if role in by_role]
    for linear, own in sources:
        if own.numel() != linear.shape[0]:
            raise _unknown(model, index, f"{linear.name} has {linear.shape[0]} rows for {width} channels")
    _check_beside(model, index, sink, sources, 1)
    return _made(model, "channels", index, sink, rows, sources)


def _check_beside(
    model: StreamedModel, index: int, sink: Linear, sources: list[tuple[Linear, Tensor]], width: int
) -> None:
    """Raise ArchitectureError where the sink's parent module has parameters that belong to all units together.

    A norm over all heads (OLMo 2, BitNet) changes its output when some are removed; one over the `width` of a head
    does not.
    """
    parent = sink.name.rpartition(".")[0]
    if parent.endswith(f".{index}"):
        return
    own = {linear.name for linear, _ in sources} | {sink.name}
    for name, parameter in model.module(parent).named_parameters(prefix=parent):
        if name.rpartition(".")[0] not in own and parameter.numel() not in (1, width):
            raise _unknown(
                model, index, f"{name} with its {parameter.numel()} entries does not belong to single units"
            )  # fmt: skip


def _made(
    model: StreamedModel, kind: Kind, index: int, sink: Linear, columns: Tensor, sources: list[tuple[Linear, Tensor]]
) -> Units:
    if columns.numel() != sink.shape[1]:
        raise _unknown(model, index, f"{sink.name} has {sink.shape[1]} inputs, its units {columns.numel()}")
    rows = sum(own.shape[1] * (linear.shape[1] + model.weights.has_bias(linear)) for linear, own in sources)
    return Units(kind, index, sink, columns, tuple(sources), rows + columns.shape[1] * sink.shape[0])


def _runs(count: int, width: int) -> Tensor:
    """Consecutive indices 0, 1, ... as (count, width)."""
    return torch.arange(count * width).view(count, width)


def _unknown(model: StreamedModel, index: int, why: str) -> ArchitectureError:
    return ArchitectureError(
        f"block {index}: {why}: structured pruning needs one attention (q, k, v or qkv; o) and one MLP (up, with or "
        "without gate; down): use a layer-wise method, or add the names of the linears to stages/models/roles.py"
    )
