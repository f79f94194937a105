"""Small modules with groups of every kind, for the laws of gating."""

from __future__ import annotations

import torch
from torch import nn

from stages.gating.groups import Groups, units, whole_parameters
from stages.gating.slices import EvenSlices, LabelledSlices


class Attention(nn.Module):
    """8 wide, 4 query heads that share 2 key-value heads, a channel MLP of 6; as decoder blocks are built."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.o = nn.Linear(8, 8, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in ((8, 6), (8, 6), (6, 8)))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (one(x).view(batch, length, -1, 2).transpose(1, 2) for one in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def _tiles() -> torch.Tensor:
    return torch.arange(4).view(2, 2).repeat_interleave(4, 0).repeat_interleave(4, 1)


def _some_rows() -> torch.Tensor:
    return torch.tensor([0, -1, 1, 1, 0, -1, 2, 2]).view(8, 1)


QKV_ROWS = ["q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias"]
FAMILIES = {
    "heads and channels": (
        Attention,
        lambda: [units(2, QKV_ROWS, ["o.weight"]), units(6, ["gate.weight", "up.weight"], ["down.weight"])],
        (3, 5, 8),
    ),
    "whole linears": (Attention, lambda: [whole_parameters(["gate.weight", "o.weight"])], (3, 5, 8)),
    "rows of one, columns of another": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        lambda: [Groups(8, (EvenSlices("0.weight"),)), Groups(4, (EvenSlices("1.weight", dim=1),))],
        (3, 8),
    ),
    "tiles, and rows in no order": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        lambda: [
            Groups(4, (LabelledSlices("0.weight", _tiles()),)),
            Groups(3, (LabelledSlices("1.weight", _some_rows()), LabelledSlices("1.bias", _some_rows()[:, 0]))),
        ],
        (3, 8),
    ),
    "two families in one weight": (
        lambda: nn.Linear(8, 8),
        lambda: [
            Groups(2, (LabelledSlices("weight", torch.tensor([0, 0, 1, 1, -1, -1, -1, -1]).view(8, 1)),)),
            Groups(1, (LabelledSlices("weight", torch.tensor([-1, -1, -1, -1, 0, 0, -1, -1]).view(8, 1)),)),
        ],
        (3, 8),
    ),
    "stacked q, k and v": (
        lambda: nn.Sequential(nn.Linear(8, 24)),
        lambda: [Groups(4, (EvenSlices("0.weight", repeats=3), EvenSlices("0.bias", repeats=3)))],
        (3, 8),
    ),
    "filters of a convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 2)),
        lambda: [units(4, ["0.weight", "0.bias"], ["1.weight"])],
        (2, 3, 6, 6),
    ),
}
"""A module, families of its groups, the shape of its input."""


def example(kind: str, dtype: torch.dtype = torch.float64):
    """Module, families and an input, the same every time."""
    make, families, shape = FAMILIES[kind]
    torch.manual_seed(0)
    return make().to(dtype), families(), torch.randn(shape, dtype=dtype)


def places_of(model: nn.Module, family: Groups) -> list[dict[str, torch.Tensor]]:
    """For each group, masks of its places by parameter, found one place at a time."""
    found = [{} for _ in range(family.count)]
    for one in family.slices:
        parameter = dict(model.named_parameters())[one.parameter]
        masks = torch.zeros(family.count, *parameter.shape, dtype=torch.bool)
        for place in torch.cartesian_prod(*(torch.arange(length) for length in parameter.shape)).view(
            -1, parameter.dim()
        ):
            label = _label(one, place.tolist(), parameter.shape, family.count)
            if label >= 0:
                masks[(label, *place.tolist())] = True
        for group in range(family.count):
            found[group][one.parameter] = masks[group]
    return found


def _label(one, place, shape, count):
    if isinstance(one, EvenSlices):
        size = shape[one.dim] // (one.repeats * count)
        return place[one.dim] // size % count
    return int(one.labels.expand(shape)[tuple(place)])
