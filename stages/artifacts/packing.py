"""Boolean masks packed into bits, as solutions and checkpoints store them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pack(keep: Tensor) -> Tensor:
    """A bool mask as uint8 (bytes,): eight entries a byte in row-major order, the first in the highest bit."""
    return torch.from_numpy(np.packbits(keep.flatten().cpu().numpy()))


def unpack(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The bool mask of this shape that `pack` packed."""
    total = int(np.prod(shape))
    bits = np.unpackbits(packed.cpu().numpy(), count=total)
    return torch.from_numpy(bits).view(torch.bool).reshape(shape)
