"""Backpropagation of the calibration loss block by block, for the salience of units (heads and MLP channels).

One block and one sequence are in memory. The block's input states are those that extract stored; the gradients in its
output states were written by the block after it, to a file of the block store that lives until the block before it is
done. Of the gradients of its weights only a few sums for each unit are kept (linalg/salience.py).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from stages.artifacts.activations import read_states, states_shape, writer_of
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest
from stages.artifacts.places import ACTIVATIONS, TEXTS
from stages.artifacts.store import BlockStore, key_of
from stages.artifacts.tensorfile import read_tensors, write_tensors
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.errors import ArtifactError, NotFiniteError
from stages.linalg.gram import GramSum
from stages.models.loading.compute import compute_facts
from stages.models.streaming.gradients import differentiable, loss_gradient
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Kind, units_of
from stages.walk.forward import advance
from stages.walk.salience import unit_salience
from stages.walk.states import BlockInputStates

Moments = tuple[Tensor, Tensor]
"""Mean over sequences of a parameter's gradient, and of its square."""


def read_salience(path: Path, kind: Kind) -> dict[str, Tensor]:
    """Salience of the units of a kind by each of salience.TERMS, (units, linears): their sources, then their sink."""
    start = f"{kind}."
    return {name.removeprefix(start): value for name, value in read_tensors(path).items() if name.startswith(start)}


class Backward:
    """Backward walk over the dense blocks from the last to the first, writing the salience of each block's units.

    Gradients that are missing in the block store are computed again from the blocks after. In the model's dtype, but
    in float32 where that is float16, in which gradients of a mean over tokens vanish.

    identity: of the model's files, for the keys; chunk: sequences processed together where states are made.
    """

    def __init__(self, model: StreamedModel, identity: str, chunk: int) -> None:
        if model.dtype == torch.float16:
            model = model.in_dtype("float32")
        self._model, self._entering = model, BlockInputStates(model, chunk)
        self._wide = torch.promote_types(model.dtype, torch.float32)
        self._store = BlockStore("gradients")
        self._facts = {
            "model": identity,
            "activations": identity_of(ACTIVATIONS),
            "code": code_of(Backward),
            **compute_facts(model.device, model.dtype, 1),
        }

    def key(self, index: int) -> str:
        """Key in the block store of the salience of a block's units."""
        return key_of(task="salience", block=index, **self._facts)

    def write(self, index: int, path: Path) -> None:
        """Write the salience of the units of block `index`, and E[g gᵀ] of the gradients g of their sinks' outputs."""
        parameters, gradients, fisher = self._through(index)
        tensors = dict[str, Tensor]()
        for units in units_of(self._model, index):
            terms = unit_salience(units, parameters, gradients)
            tensors |= {f"{units.kind}.{name}": value.cpu() for name, value in terms.items()}
            tensors[f"fisher.{units.kind}"] = fisher[units.sink.name].mean_gram().cpu()
        write_tensors(path, tensors)
        self._store.drop(self._leaving_key(index + 1))

    def forget(self) -> None:
        """Drop the stored gradients of all blocks."""
        for index in range(-1, self._model.blocks):
            self._store.drop(self._leaving_key(index))

    def _through(self, index: int) -> tuple[dict[str, Tensor], dict[str, Moments], dict[str, GramSum]]:
        """Backpropagate through a block, store the gradients in its input states, and sum those of its weights.

        Returns its linears' parameters and the moments of their gradients by name, and for each sink the Gram sum of
        the gradients of its outputs.
        """
        leaving, states = self._leaving(index), self._entering.dense(index)
        shape, moments, parameters = states_shape(states), dict[str, Moments](), dict[str, Tensor]()
        sinks = [units.sink for units in units_of(self._model, index)]
        sums = {sink.name: GramSum.zeros(sink.shape[0], self._wide, self._model.device) for sink in sinks}

        def write(path: Path) -> None:
            with (
                differentiable(self._model, index, list(sums)) as block,
                writer_of(path, "safetensors", shape, self._wide) as writer,
            ):
                for entered, gradient in zip(read_states(states, 1), read_states(leaving, 1), strict=True):
                    gradients = block.backward(entered, gradient)
                    writer.append(self._finite(gradients.entering, index))
                    for name, value in gradients.parameters.items():
                        moments[name] = add_gradient(moments.get(name), value.to(self._wide) / shape[0], shape[0])
                    for name, value in gradients.outputs.items():
                        sums[name].add(value)
                parameters.update({name: value.detach().to(self._wide) for name, value in block.parameters.items()})

        self._store.make(self._leaving_key(index - 1), write)
        return parameters, moments, sums

    def _leaving(self, index: int) -> Path:
        """File of the gradients in the output states of a block, computed where it is not in the block store."""
        key = self._leaving_key(index)
        stored = self._store.find(key)
        if stored is not None:
            return stored
        if index == self._model.blocks - 1:
            return self._store.make(key, self._write_last)
        self._through(index + 1)
        return self._leaving(index)

    def _write_last(self, path: Path) -> None:
        """Write the gradients of the loss in the output states of the last block."""
        last, windows = self._model.blocks - 1, calibration_windows()
        states, model, key = self._entering.dense(last), self._model, key_of(task="left", **self._facts)
        left = self._store.get(key, lambda to: advance(model, last, states, to, 1, "safetensors", model.dtype))
        with model.ended() as logits, writer_of(path, "safetensors", states_shape(left), self._wide) as writer:
            for sequence, tokens in zip(read_states(left, 1), windows, strict=True):
                gradient = loss_gradient(logits, sequence.to(model.device), tokens)[1]
                writer.append(self._finite(gradient, last + 1))
        self._store.drop(key)

    def _finite(self, gradient: Tensor, index: int) -> Tensor:
        if not torch.isfinite(gradient).all():
            raise NotFiniteError(
                f"the loss's gradients in the states entering block {index} are not finite: use compute.dtype float32, "
                "or check the model"
            )
        return gradient.to(self._wide)

    def _leaving_key(self, index: int) -> str:
        return key_of(task="gradients", after=index, **self._facts)


def add_gradient(moments: Moments | None, share: Tensor, count: int) -> Moments:
    """Adds one gradient to the running means of g and g², in place; None: there are none yet.

    share: the gradient over `count`, the number of all gradients of the mean.
    """
    # (g / n)² n = g² / n: the gradient's share of the mean of squares.
    square = share.square() * count
    return (share, square) if moments is None else (moments[0].add_(share), moments[1].add_(square))


def calibration_windows() -> Tensor:
    """Token ids (sequences, length) of the calibration text whose hidden states extract stored."""
    manifest = read_manifest(ACTIVATIONS)
    if manifest["texts"] != identity_of(TEXTS):
        raise ArtifactError(f"{ACTIVATIONS} was made from other texts than {TEXTS} holds now: run `dvc repro`")
    drawn = manifest["calibration"]
    tokens = read_tokens(TEXTS, "calibration", read_manifest(TEXTS))
    return sample_windows(tokens, drawn["sequences"], drawn["length"], drawn["seed"], drawn["text"])
