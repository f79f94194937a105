"""The training result in the block store: size and scale of every gated unit, and trained weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.tensorfile import TensorFile
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind, Units
from stages.models.structure import Linear


@dataclass(frozen=True)
class TrainedGates:
    """Reads trained gates, and weights where they were trained, from a file of the block store.

    power: p of sign(s) |s|^p, which replaces the scale s of a unit when it is folded into the weights; with 0, units
           that stay are as they were before training.
    """

    path: Path
    power: float = 1.0

    @property
    def key(self) -> str:
        """Key of the file in the block store."""
        return self.path.stem

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest: steps taken, share of the units' parameters at zero after them, power of the scales."""
        facts: dict[str, Any] = json.loads(TensorFile(self.path).metadata["facts"])
        return {**facts, "power": self.power}

    @property
    def weights(self) -> bool:
        """Whether weights were trained, not only gates."""
        return any(name.endswith(".weight") for name in TensorFile(self.path).spans)

    def sizes(self, units: Units) -> Tensor:
        """|s| of each unit (units,), float64: 1 before training and for units that were not gated, 0 for those gone."""
        return self._read(units, "size")

    def scales(self, units: Units) -> Tensor:
        """sign(s) |s|^power of each unit (units,), float64, which multiplies its columns of o or down."""
        scales = self._read(units, "scale")
        return scales.sign() * scales.abs().pow(self.power) if self.power else torch.ones_like(scales)

    def weight(self, linear: Linear, kinds: Sequence[Units], model: StreamedModel) -> Tensor:
        """Trained weight (d_out, d_in) of a linear, units' scales folded into its columns if it reads units.

        kinds: the heads and channels whose scales are folded in. Not rounded to the checkpoint's dtype.
        """
        file = TensorFile(self.path)
        stored = file.read([linear.tensor]) if linear.tensor in file.spans else {}
        weight = linear.weight(stored[linear.tensor]) if stored else model.weights.stored(linear)
        for units in kinds:
            if units.sink == linear:
                scales = torch.ones(linear.shape[1], dtype=torch.float64)
                scales[units.columns] = self.scales(units)[:, None]
                weight = weight.double() * scales
        return weight

    def _read(self, units: Units, what: str) -> Tensor:
        file, name = TensorFile(self.path), gate_tensor(units.block, units.kind, what)
        return file.read([name])[name] if name in file.spans else torch.ones(units.count, dtype=torch.float64)


def gate_tensor(block: int, kind: Kind, what: str) -> str:
    """Name of the tensor that holds the `size` or `scale` of a block's heads or channels."""
    return f"gates.{block}.{kind}.{what}"
