"""Computes the bases that slice the hidden states entering every norm (SliceGPT), block after block.

Each block is calibrated on what the sliced blocks before it give. The model that runs is the dense one with hooks that
project its hidden states (models/streaming/slicing.py); states on disk are in its coordinates. A block's file holds two
bases, `attention.basis` and `mlp.basis`, (width, kept); the last one's may hold `final.basis`. assemble makes the
rotated weights from them. Finished blocks and the states leaving the last of them are in the block store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stages.artifacts.activations import read_states
from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of, read_manifest
from stages.artifacts.places import ACTIVATIONS
from stages.artifacts.store import BlockStore, key_of
from stages.artifacts.tensorfile import write_tensors
from stages.linalg.gram import GramSum
from stages.linalg.principal import Principal, principal
from stages.methods import registry
from stages.methods.rotation.contract import Sizes
from stages.models.loading.compute import compute_facts
from stages.models.streaming.slicing import READERS, Bases, check_sliceable, project, projecting, stopping_between
from stages.models.streaming.streamed import StreamedModel
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.runtime.workspace import open_model, same_model
from stages.solving.plan import Solved
from stages.solving.rotation.table import sliced_rows
from stages.walk.bases import LAYOUT, read_bases, read_lost
from stages.walk.forward import advance
from stages.walk.states import BlockInputStates


def solve_sliced(run: StageRun) -> Solved:
    """Slice the whole model: bases of every block, and the table of linears that follow from them.

    Raises ParameterError where no width meets solve.sparsity, ArchitectureError for a model that cannot be sliced.
    """
    walk = SlicedWalk(run)
    paths = walk.solve()
    lost = [read_lost(path) for path in paths]
    rows = sliced_rows(walk.model, run.params.solve.method, walk.width, lost, walk.method.head)
    return Solved(paths, rows, walk.facts(), walk.forget)


class SlicedWalk:
    """Walks over the blocks and writes the bases of each; raises as `solve_sliced`."""

    def __init__(self, run: StageRun) -> None:
        self.run, self.params = run, run.params
        self.model, self.identity = open_model(run.params.compute)
        same_model(read_manifest(ACTIVATIONS), self.identity, ACTIVATIONS)
        name = run.params.solve.method
        self.method = registry.load(name, run.params.methods.get(name))
        self.sizes = sizes_of(self.model)
        self.width = self.method.width(self.sizes, run.params.solve.amount)
        self._states, self._store = BlockInputStates(self.model, run.params.compute.chunk), BlockStore("sliced")
        facts = compute_facts(self.model.device, self.model.dtype, run.params.compute.chunk)
        self._made_of = {
            "model": self.identity, "activations": identity_of(ACTIVATIONS),
            "code": code_of(SlicedWalk, *registry.modules_of(name, self.method)),
            "width": self.width, "head": self.method.head, "signal": self.method.signal, **facts,
        }  # fmt: skip
        self._solutions = list[Path]()

    def solve(self) -> list[Path]:
        """The file of bases of every block, in order."""
        bar = progress(range(self.model.blocks), desc=self.params.solve.method, unit="block")
        for index in bar:
            block = Block("slice", index, self._key("slice", index))
            self._solutions.append(self.run.run_block(block, partial(self._write, index)))
            bar.set_postfix_str(f"lost {max(read_lost(self._solutions[-1]).values()):.4f}", refresh=False)
        return self._solutions

    def facts(self) -> dict[str, Any]:
        """What the solution was made from and with, for its manifest."""
        return {
            "model": self.identity,
            "activations": identity_of(ACTIVATIONS),
            "calibration": read_manifest(ACTIVATIONS)["calibration"],
            "solve": self.params.solve.model_dump(mode="json"),
            "settings": {self.params.solve.method: asdict(self.method)},
            "compute": compute_facts(self.model.device, self.model.dtype, self.params.compute.chunk),
            "layout": LAYOUT,
            "width": self.width,
        }

    def forget(self) -> None:
        """Drop from the block store the hidden states that only an interrupted run would need again."""
        for index in range(self.model.blocks + 1):
            self._store.drop(self._key("entering", index))

    def _write(self, index: int, path: Path) -> None:
        """Write the bases of block `index`, and the share of energy that each loses."""
        states = self._entering(index)
        attention = self._principal(read_states(states, self.params.compute.chunk))
        basis = attention.basis.to(self.model.device)
        with self.model.loaded(index), torch.no_grad(), stopping_between(self.model, index) as between:
            chunks = read_states(states, self.params.compute.chunk)
            mlp = self._principal(between(project(chunk.to(basis.device), basis)) for chunk in chunks)
        bases = {"attention": attention, "mlp": mlp}
        if self.method.head and index == self.model.blocks - 1:
            leaving = self._advanced(index, Bases(attention.basis, mlp.basis), self._key("entering", index + 1))
            bases["final"] = self._principal(read_states(leaving, self.params.compute.chunk))
        wide = torch.promote_types(self.model.dtype, torch.float32)
        tensors = {f"{name}.basis": component.basis.to("cpu", wide) for name, component in bases.items()}
        write_tensors(path, tensors, {"lost": json.dumps({name: component.lost for name, component in bases.items()})})
        self._store.drop(self._key("entering", index - 1))

    def _principal(self, chunks: Iterable[Tensor]) -> Principal:
        """Principal components of hidden states, their Gram matrix summed in float64."""
        total = GramSum.zeros(self.model.width, torch.float64, self.model.device)
        for chunk in chunks:
            states = chunk.to(self.model.device)
            if self.method.signal == "normed":
                states = nn.functional.rms_norm(states.float(), states.shape[-1:], eps=self.model.config.rms_norm_eps)
            total.add(states)
        return principal(total.mean_gram(), self.width)

    def _entering(self, index: int) -> Path:
        """File of the states that enter block `index` of the sliced model, not yet projected."""
        if index == 0:
            return self._states.dense(0)
        key = self._key("entering", index)
        return self._store.find(key) or self._advanced(index - 1, read_bases(self._solutions[index - 1]), key)

    def _advanced(self, index: int, bases: Bases, key: str) -> Path:
        """File of the states that leave block `index` of the sliced model."""
        model, source, chunk = self.model, self._entering(index), self.params.compute.chunk

        def write(path: Path) -> None:
            with projecting(model, lambda _: bases, range(index, index + 1)):
                advance(model, index, source, path, chunk, "safetensors", model.dtype)

        return self._store.make(key, write)

    def _key(self, task: str, index: int) -> str:
        return key_of(task=task, block=index, **self._made_of)


def sizes_of(model: StreamedModel) -> Sizes:
    """The parameter counts of a model as a function of its hidden width.

    Raises ArchitectureError for a model that cannot be sliced.
    """
    check_sliceable(model)
    dense = rows = last = 0
    for index in range(model.blocks):
        for linear in model.linears(index):
            biases = linear.shape[0] if model.weights.has_bias(linear) else 0
            dense += linear.shape[0] * linear.shape[1] + biases
            if linear.role in READERS:
                rows += linear.shape[0]
            else:
                own = linear.shape[1] + (biases > 0)
                rows += own
                last += own if index == model.blocks - 1 and linear.role == "mlp.down" else 0
    tied = bool(model.config.tie_word_embeddings)
    return Sizes(model.width, dense, rows, last, dense - rows * model.width, model.blocks, tied)
