"""InceptionV3 of 2015 as FID uses it: the network of TensorFlow's classify_image_graph_def.pb, in torch.

Parameters have the names of torch-fidelity's weights-inception-2015-12-05-6726825d.pth (and pytorch-fid's), which was
converted from that graph. Differences from torchvision's InceptionV3 are the graph's own: pooling leaves the padding
out of its averages, the last module pools by the maximum, and images are resized as TensorFlow 1 did.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

SIDE = 299
"""Pixels of a side of the network's input."""
SPATIAL_CHANNELS = 7
"""Channels of mixed_6/conv that sFID is of."""
_average = partial(functional.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False)
_maximum = partial(functional.max_pool2d, kernel_size=3, stride=1, padding=1)
_halved = partial(functional.max_pool2d, kernel_size=3, stride=2)


class Convolution(nn.Module):
    """Convolution without bias, batch normalisation, ReLU. Padding keeps the size unless told otherwise."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, pad: bool = True
    ) -> None:
        super().__init__()
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (sides[0] // 2, sides[1] // 2) if pad else (0, 0)
        self.conv = nn.Conv2d(inputs, outputs, sides, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, ...)."""
        return functional.relu(self.bn(self.conv(x)))


@dataclass(frozen=True)
class Step:
    """A convolution of a branch: its name, outputs and kernel (height, width, or both); stride 2 pads nothing."""

    name: str
    outputs: int
    kernel: int | tuple[int, int]
    stride: int = 1


Branch = list[Step | tuple[Step, Step]]
"""Convolutions in their order; a pair takes the same input, and its outputs are put side by side."""


class Mixed(nn.Module):
    """An Inception module: branches of one input, and a pooled one, whose outputs are put side by side.

    pool: how the last branch begins; a module that halves the size has nothing after it.
    """

    def __init__(self, inputs: int, branches: list[Branch], pool: partial[Tensor], last: Branch) -> None:
        super().__init__()
        self.branches, self.pool, self.outputs = [*branches, last], pool, 0
        for branch in self.branches:
            width = inputs
            for steps in branch:
                pair = steps if isinstance(steps, tuple) else (steps,)
                for step in pair:
                    module = Convolution(width, step.outputs, step.kernel, step.stride, pad=step.stride == 1)
                    self.add_module(step.name, module)
                width = sum(step.outputs for step in pair)
            self.outputs += width

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) to (batch, outputs, ...)."""
        starts = [x] * (len(self.branches) - 1) + [self.pool(x)]
        return torch.cat([self._along(branch, start) for branch, start in zip(self.branches, starts, strict=True)], 1)

    def _along(self, branch: Branch, x: Tensor) -> Tensor:
        for steps in branch:
            pair = steps if isinstance(steps, tuple) else (steps,)
            x = torch.cat([self.get_submodule(step.name)(x) for step in pair], 1)
        return x


def _fine(inputs: int, pooled: int) -> Mixed:
    """A module at 35 x 35."""
    single: Branch = [Step("branch1x1", 64, 1)]
    wide: Branch = [Step("branch5x5_1", 48, 1), Step("branch5x5_2", 64, 5)]
    double: Branch = [Step("branch3x3dbl_1", 64, 1), Step("branch3x3dbl_2", 96, 3), Step("branch3x3dbl_3", 96, 3)]
    return Mixed(inputs, [single, wide, double], _average, [Step("branch_pool", pooled, 1)])


def _first_halving(inputs: int) -> Mixed:
    """From 35 x 35 to 17 x 17."""
    double: Branch = [Step("branch3x3dbl_1", 64, 1), Step("branch3x3dbl_2", 96, 3), Step("branch3x3dbl_3", 96, 3, 2)]
    return Mixed(inputs, [[Step("branch3x3", 384, 3, 2)], double], _halved, [])


def _middle(inputs: int, width: int) -> Mixed:
    """A module at 17 x 17, of kernels 1 x 7 and 7 x 1."""
    row, column = (1, 7), (7, 1)
    single: Branch = [
        Step("branch7x7_1", width, 1), Step("branch7x7_2", width, row), Step("branch7x7_3", 192, column),
    ]  # fmt: skip
    double: Branch = [
        Step("branch7x7dbl_1", width, 1), Step("branch7x7dbl_2", width, column), Step("branch7x7dbl_3", width, row),
        Step("branch7x7dbl_4", width, column), Step("branch7x7dbl_5", 192, row),
    ]  # fmt: skip
    return Mixed(
        inputs, [[Step("branch1x1", 192, 1)], single, double], _average, [Step("branch_pool", 192, 1)]
    )  # fmt: skip


def _second_halving(inputs: int) -> Mixed:
    """From 17 x 17 to 8 x 8."""
    short: Branch = [Step("branch3x3_1", 192, 1), Step("branch3x3_2", 320, 3, 2)]
    long: Branch = [
        Step("branch7x7x3_1", 192, 1), Step("branch7x7x3_2", 192, (1, 7)), Step("branch7x7x3_3", 192, (7, 1)),
        Step("branch7x7x3_4", 192, 3, 2),
    ]  # fmt: skip
    return Mixed(inputs, [short, long], _halved, [])


def _coarse(inputs: int, pool: partial[Tensor]) -> Mixed:
    """A module at 8 x 8, whose branches end in pairs."""
    row, column = (1, 3), (3, 1)
    single: Branch = [
        Step("branch3x3_1", 384, 1), (Step("branch3x3_2a", 384, row), Step("branch3x3_2b", 384, column)),
    ]  # fmt: skip
    double: Branch = [
        Step("branch3x3dbl_1", 448, 1), Step("branch3x3dbl_2", 384, 3),
        (Step("branch3x3dbl_3a", 384, row), Step("branch3x3dbl_3b", 384, column)),
    ]  # fmt: skip
    return Mixed(inputs, [[Step("branch1x1", 320, 1)], single, double], pool, [Step("branch_pool", 192, 1)])


class InceptionV3(nn.Module):
    """The network; `forward` gives what FID, sFID and the Inception score are of."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Convolution(3, 32, 3, stride=2, pad=False)
        self.Conv2d_2a_3x3 = Convolution(32, 32, 3, pad=False)
        self.Conv2d_2b_3x3 = Convolution(32, 64, 3)
        self.Conv2d_3b_1x1 = Convolution(64, 80, 1)
        self.Conv2d_4a_3x3 = Convolution(80, 192, 3, pad=False)
        self.Mixed_5b = _fine(192, 32)
        self.Mixed_5c = _fine(self.Mixed_5b.outputs, 64)
        self.Mixed_5d = _fine(self.Mixed_5c.outputs, 64)
        self.Mixed_6a = _first_halving(self.Mixed_5d.outputs)
        self.Mixed_6b = _middle(self.Mixed_6a.outputs, 128)
        self.Mixed_6c = _middle(self.Mixed_6b.outputs, 160)
        self.Mixed_6d = _middle(self.Mixed_6c.outputs, 160)
        self.Mixed_6e = _middle(self.Mixed_6d.outputs, 192)
        self.Mixed_7a = _second_halving(self.Mixed_6e.outputs)
        self.Mixed_7b = _coarse(self.Mixed_7a.outputs, _average)
        self.Mixed_7c = _coarse(self.Mixed_7b.outputs, _maximum)
        self.fc = nn.Linear(self.Mixed_7c.outputs, 1008)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of bytes (batch, 3, height, width): pool_3 (batch, 2048), spatial (batch, 7 * 17 * 17), logits (batch, 1008).

        spatial: the first channels of mixed_6/conv, after its ReLU; logits: without the bias, as ADM's evaluator.
        """
        x = (resized(images.to(self.fc.weight.dtype), SIDE) - 128) / 128
        x = _halved(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = _halved(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_6a(self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x))))
        x = self.Mixed_6c(self.Mixed_6b(x))
        spatial = self.Mixed_6d.get_submodule("branch1x1")(x)[:, :SPATIAL_CHANNELS].flatten(1)
        x = self.Mixed_6e(self.Mixed_6d(x))
        pooled = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x))).mean((2, 3))
        return pooled, spatial, pooled @ self.fc.weight.T


def resized(images: Tensor, side: int) -> Tensor:
    """Images (batch, 3, height, width) at side x side by TensorFlow 1's bilinear: pixel i is taken at i * size / side.

    torch's interpolate takes pixels by their centres, (i + 1/2) size / side - 1/2, or by the corners.
    """
    for axis in (2, 3):
        size = images.shape[axis]
        place = torch.arange(side, device=images.device, dtype=images.dtype) * (size / side)
        low = place.long()
        share = (place - low).view(-1, *[1] * (3 - axis))
        first, second = images.index_select(axis, low), images.index_select(axis, (low + 1).clamp(max=size - 1))
        images = first + (second - first) * share
    return images
