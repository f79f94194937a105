"""Layouts of a structured checkpoint: how each tensor is cut so that a class of models can load it.

hetero:  every block as narrow as it was pruned, loaded by classes of this package, which lie in the checkpoint too.
uniform: the same where all blocks are equally wide, for one of transformers' own classes.
padded:  zeros in the place of removed units, up to the widest block or else the dense width, for transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.tensorfile import TensorFile
from stages.errors import ArchitectureError, ParameterError
from stages.models.classes.hetero import CLASSES, hetero_values
from stages.models.classes.llamagen import image_class
from stages.models.export.cutting import AxisCut, cuts_of
from stages.models.export.native import Widths, fit, native_values
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Units, units_of

PROJECTIONS = {"attention.o": "o_proj", "mlp.down": "down_proj"}
Keep = Mapping[str, Tensor]
"""By kind, which units (units,) bool of a block are kept."""


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is rewritten; not at all, where no units were removed.

    name:       hetero, uniform or padded; dense where every tensor keeps its shape and config.json its values.
    values:     of config.json.
    cuts:       by stored tensor, the rows or columns kept.
    padding:    by stored bias, its entries (size,) bool, after the cut, that belong to removed units: they become 0.
    added:      biases that the class has and the dense model lacks: shapes, by stored name.
    made_for:   a class of this package that loads it, whose modeling files lie beside config.json; None: transformers'.
    parameters: of the model.
    """

    name: str = "dense"
    values: Mapping[str, Any] | None = None
    cuts: Mapping[str, AxisCut] = field(default_factory=dict)
    padding: Mapping[str, Tensor] = field(default_factory=dict)
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    made_for: type | None = None
    parameters: int | None = None


class LayoutPlanner:
    """Finds the layouts that a solution can have.

    keep: units kept in each block; biases: parameters that the solution adds to linears which have no bias.
    """

    def __init__(self, model: StreamedModel, keep: Sequence[Keep], biases: set[str], trust_remote_code: bool) -> None:
        self._model, self._keep, self._biases, self._trust = model, keep, biases, trust_remote_code
        self._units = [units_of(model, index) for index in range(model.blocks)]
        folder = model.checkpoint.folder
        self._values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._shapes = {
            tensor: span.shape
            for name in sorted(set(model.checkpoint.files.values()))
            for tensor, span in TensorFile(folder / name).spans.items()
        }
        self._roles = {
            linear.role
            for index in range(model.blocks)
            for linear in model.linears(index)
            if f"{linear.name}.bias" in biases
        }

    def plan(self, wanted: str) -> Layout:
        """The layout `wanted`; auto: the smallest that the architecture has, in a class of transformers' if it can be.

        Raises ParameterError or ArchitectureError with what would work instead.
        """
        made: dict[str, Callable[[], Layout]] = {
            "uniform": self._uniform,
            "hetero": self._hetero,
            "padded": self._padded,
        }
        if wanted != "auto":
            return made[wanted]()
        refused = list[str]()
        for make in made.values():
            try:
                return make()
            except (ParameterError, ArchitectureError) as error:
                refused.append(str(error))
        raise ArchitectureError(refused[-1])

    def _hetero(self) -> Layout:
        if self._values.get("model_type") not in CLASSES:
            raise ParameterError(
                f"assemble.layout: hetero has classes for {', '.join(CLASSES)}, got {self._values.get('model_type')}: "
                "use uniform (equal widths in every block), padded or auto"
            )
        each = [self._widths(index, keep) for index, keep in enumerate(self._keep)]
        biases = {PROJECTIONS[role] for role in self._roles}
        heads, channels = ([getattr(widths, name) for widths in each] for name in ("key_value_heads", "channels"))
        values = hetero_values(self._values, heads, channels, each[0].head_width, biases)
        return self._fitted("hetero", self._keep, [values], CLASSES[self._values["model_type"]][1])

    def _uniform(self) -> Layout:
        for units in zip(*self._units, strict=True):
            counts = [int(keep[units[0].kind].sum()) for keep in self._keep]
            if len(set(counts)) > 1:
                raise ParameterError(
                    f"assemble.layout: uniform wants as many {units[0].kind} in every block, got {min(counts)} to "
                    f"{max(counts)}: set solve.units.allocation to uniform and let no rule settle single blocks, or "
                    f"use {' or '.join(sorted(self._others()))}"
                )
        return self._native("uniform", self._keep)

    def _padded(self) -> Layout:
        """The narrowest padding that a class takes: to the widest block, to all heads, to all heads and channels."""
        dense = {str(units.kind): units.count for units in self._units[0]}
        widest = {kind: max(int(keep[kind].sum()) for keep in self._keep) for kind in dense}
        for counts in (widest, widest | {"heads": dense["heads"]}):
            try:
                return self._native("padded", [_filled(keep, counts) for keep in self._keep])
            except ArchitectureError:
                continue
        return self._native("padded", [_filled(keep, dense) for keep in self._keep])

    def _native(self, name: str, stays: Sequence[Keep]) -> Layout:
        full = {str(units.kind): units.count for units in self._units[0]}
        old, new = self._widths(0, _filled(stays[0], full)), self._widths(0, stays[0])
        try:
            return self._fitted(name, stays, native_values(self._values, self._model.config, old, new, self._roles))
        except ArchitectureError as error:
            widths = f"{new.heads} of {old.heads} heads, {new.channels} of {old.channels} channels"
            widths += "".join(f", a bias of {role}" for role in sorted(self._roles))
            advice = ["compensate by weights instead of biases"] if self._roles else []
            if new.heads != old.heads:
                advice.append("keep all heads (solve.rules: roles [attention], sparsity 0)")
            others = self._others() - {name} - ({"padded"} if self._roles else set())
            advice += [f"use {' or '.join(sorted(others))}"] if others else []
            raise ArchitectureError(
                f"assemble.layout: {name}: no class of transformers' takes {widths} ({error})"
                + (f": {' or '.join(advice)}" if advice else "")
            ) from None

    def _others(self) -> set[str]:
        """Layouts that may serve where a class of transformers' own does not."""
        return {"padded"} | ({"hetero"} if self._values.get("model_type") in CLASSES else set())

    def _fitted(
        self, name: str, stays: Sequence[Keep], candidates: Iterator[dict[str, Any]] | list[dict[str, Any]],
        made_for: type | None = None,
    ) -> Layout:  # fmt: skip
        """The first of `candidates`, values of config.json, whose class the tensors fit with the units that stay."""
        cuts, padding, added = dict[str, AxisCut](), dict[str, Tensor](), dict[str, tuple[int, ...]]()
        for units, stay, keep in self._each(stays):
            real = cuts_of(units, keep)
            for parameter, cut in cuts_of(units, stay).items():
                stored = self._model.weights.names.get(parameter)
                if stored is None:
                    continue
                if not cut.keep.all():
                    cuts[stored] = cut
                if parameter.endswith(".bias") and not torch.equal(cut.keep, real[parameter].keep):
                    padding[stored] = ~cut.of(real[parameter].keep)
        for linear in (linear for index in range(self._model.blocks) for linear in self._model.linears(index)):
            if f"{linear.name}.bias" in self._biases:
                stored = self._model.weights.names[linear.tensor].removesuffix("weight") + "bias"
                added[stored] = (linear.shape[0],)
        shapes = {name: cuts[name].shape(shape) if name in cuts else shape for name, shape in self._shapes.items()}
        refused: ArchitectureError | None = None
        for values in candidates:
            try:
                fitted = fit(values, self._model.config, shapes | added, self._trust)
            except ArchitectureError as error:
                refused = refused or error
                continue
            made_for = made_for or image_class(str(self._values.get("model_type")))
            return Layout(name, values, cuts, padding, added | fitted.added, made_for, fitted.parameters)
        raise refused or ArchitectureError("no class to try")

    def _each(self, stays: Sequence[Keep]) -> Iterator[tuple[Units, Tensor, Tensor]]:
        for both, stay, keep in zip(self._units, stays, self._keep, strict=True):
            for units in both:
                yield units, stay[units.kind], keep[units.kind]

    def _widths(self, index: int, keep: Keep) -> Widths:
        heads, _ = self._units[index]
        of_each = int(self._model.config.num_attention_heads) // heads.count
        kept = int(keep["heads"].sum())
        return Widths(kept * of_each, kept, heads.columns.shape[1] // of_each, int(keep["channels"].sum()))


def _filled(keep: Keep, counts: Mapping[str, int]) -> Keep:
    """`keep` with the first removed units added back, up to `counts` of each kind."""
    filled = {kind: mask.clone() for kind, mask in keep.items()}
    for kind, mask in filled.items():
        mask[(~mask).nonzero().flatten()[: max(0, counts[kind] - int(mask.sum()))]] = True
    return filled
