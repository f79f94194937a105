"""Salience of a block's units (heads, MLP channels) from the gradients of their sources' and sink's weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stages.linalg.salience import channel_salience
from stages.models.streaming.units import Units
from stages.models.structure import Linear


def unit_salience(
    units: Units, parameters: Mapping[str, Tensor], gradients: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Salience of each unit by each of salience.TERMS, (units, linears): its sources, then its sink.

    A unit's salience is the sum over its channels: its rows of the sources, with their biases, and its columns of the
    sink. The sink's bias stays when units are removed, so it is left out.

    parameters: weights and biases by name, as they are stored; gradients: of each, the mean over texts and the mean of
    the square.
    """
    terms = dict[str, list[Tensor]]()

    def add(places: Tensor, *tensors: Tensor) -> None:
        for name, carried in channel_salience(*tensors).items():
            terms.setdefault(name, []).append(carried[places.to(carried.device)].sum(1))

    for linear, rows in units.sources:
        add(rows, *_rows(linear, parameters, gradients))
    weight, name = units.sink, units.sink.tensor
    add(units.columns, *(weight.weight(tensor).T for tensor in (parameters[name], *gradients[name])))
    return {name: torch.stack(columns, 1) for name, columns in terms.items()}


def _rows(
    linear: Linear, parameters: Mapping[str, Tensor], gradients: Mapping[str, tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Weight, mean gradient and mean squared gradient of a linear (d_out, d_in), the bias as one more column."""
    tensors = [linear.weight(tensor) for tensor in (parameters[linear.tensor], *gradients[linear.tensor])]
    bias = f"{linear.name}.bias"
    if bias not in parameters:
        return tensors
    beside = (parameters[bias], *gradients[bias])
    return [torch.cat((rows, entry.unsqueeze(1)), 1) for rows, entry in zip(tensors, beside, strict=True)]
