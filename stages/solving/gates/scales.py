"""Chooses by held-out loss how much of the trained gates' scales is folded into the weights of units that stay.

Gates are trained on few sequences, one a step, and are penalised, so that the units that stay are scaled too far down.
The scale s is therefore replaced by sign(s) |s|^p, with the p of POWERS that has the least loss on the sequences held
out of training, removed units left out.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of
from stages.artifacts.packing import pack
from stages.artifacts.places import ACTIVATIONS
from stages.artifacts.store import key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.errors import NotFiniteError
from stages.models.loading.compute import compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KeptUnits, units_of
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.solving.gates.model import model_with_gates, next_token_loss
from stages.solving.gates.result import TrainedGates
from stages.solving.gates.training import split_windows

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Powers p that are tried: 0 leaves units as they were before training, 1 takes the scales as trained."""
log = logging.getLogger("secateur")


def choose_scale_power(
    run: StageRun, model: StreamedModel, gates: TrainedGates, kept: Sequence[KeptUnits]
) -> TrainedGates:
    """The same gates with the power of the scales that is best where the units of `kept`, block by block, stay."""
    key = key_of(
        task="gate_powers", gates=gates.key, activations=identity_of(ACTIVATIONS), code=code_of(choose_scale_power),
        kept=[{kind: bytes(pack(keep).tolist()).hex() for kind, keep in units.items()} for units in kept],
        **compute_facts(model.device, model.dtype, 1),
    )  # fmt: skip
    path = run.run_block(Block("gate_powers", 0, key), partial(_write, model, gates, kept))
    losses = read_tensors(path)["losses"]
    power = POWERS[int(losses.argmin())]
    listed = ", ".join(f"{tried:g}: {loss:.3f}" for tried, loss in zip(POWERS, losses.tolist(), strict=True))
    log.info("gates: power of the scales that are folded: %g (losses on held-out sequences %s)", power, listed)
    return dataclasses.replace(gates, power=power)


def _write(model: StreamedModel, gates: TrainedGates, kept: Sequence[KeptUnits], path: Path) -> dict[str, float]:
    """Write the mean held-out loss with each of POWERS; raises NotFiniteError for one that is not finite."""
    kinds = [units for index in range(model.blocks) for units in units_of(model, index)]
    net, scales = model_with_gates(model, gates, kinds)
    windows, losses = split_windows()[1], list[float]()
    for power in progress(POWERS, desc="scales", unit="power"):
        for units, scale in zip(kinds, scales, strict=True):
            scale.copy_(dataclasses.replace(gates, power=power).scales(units) * kept[units.block][units.kind])
        with torch.no_grad():
            each = [next_token_loss(net, tokens[None].long().to(model.device)).item() for tokens in windows]
        losses.append(sum(each) / len(each))
    means = torch.tensor(losses, dtype=torch.float64)
    if not bool(torch.isfinite(means).all()):
        raise NotFiniteError(
            "the loss of the gated model on held-out sequences is not finite: use compute.dtype float32, or lower the "
            "learning rates of methods.d_gating"
        )
    write_tensors(path, {"losses": means})
    return {}
