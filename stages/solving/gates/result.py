"""What training left in the block store: what is left of each unit, its scale, and weights where they were trained."""

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
    """What training found, in a file of the block store.

    power: |s|^power stands in the place of a scale s; with 0, units that stay are as they were.
    """

    path: Path
    power: float = 1.0

    @property
    def key(self) -> str:
        """Of the file."""
        return self.path.stem

    @property
    def facts(self) -> dict[str, Any]:
        """Its steps, the share of the units' parameters that was at zero then, and the power of the scales."""
        found: dict[str, Any] = json.loads(TensorFile(self.path).metadata["facts"])
        return {**found, "power": self.power}

    @property
    def weights(self) -> bool:
        """Whether weights were trained, not only gates."""
        return any(name.endswith(".weight") for name in TensorFile(self.path).spans)

    def sizes(self, units: Units) -> Tensor:
        """How much is left of each unit (units,), 1 at the start; those that were not gated are still there."""
        return self._of(units, "size")

    def scales(self, units: Units) -> Tensor:
        """What the columns of o or down are to be multiplied by (units,), float64."""
        found = self._of(units, "scale")
        return found.sign() * found.abs().pow(self.power) if self.power else torch.ones_like(found)

    def weight(self, linear: Linear, kinds: Sequence[Units], model: StreamedModel) -> Tensor:
        """Weight (d_out, d_in), its unit's scale folded in where the linear reads units; not rounded to the checkpoint.

        kinds: whose scales are folded in.
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

    def _of(self, units: Units, what: str) -> Tensor:
        file, name = TensorFile(self.path), gate_tensor(units.block, units.kind, what)
        return file.read([name])[name] if name in file.spans else torch.ones(units.count, dtype=torch.float64)


def gate_tensor(block: int, kind: Kind, what: str) -> str:
    """Of the tensor that tells this of the units of a kind."""
    return f"gates.{block}.{kind}.{what}"
