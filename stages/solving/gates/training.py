"""Trains a causal model's gates, with or without its weights, on the calibration windows.

The one part of the pipeline that has the whole model in memory. Its result is one file of the block store; its state is
saved there every few steps, so that a run that is killed goes on with the same bits.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Adam

from stages.artifacts.code import code_of
from stages.artifacts.manifest import identity_of
from stages.artifacts.places import ACTIVATIONS
from stages.artifacts.store import BlockStore, key_of
from stages.artifacts.tensorfile import TensorFile, read_tensors, write_tensors
from stages.errors import NotFiniteError, ParameterError
from stages.methods import registry
from stages.methods.gates.d_gating import DGating
from stages.models.loading.adapters import check_adapters
from stages.models.loading.compute import compute_facts
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import Units, parameters_of
from stages.params import Params
from stages.runtime.blocks.contract import Block
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun
from stages.solving.gates.model import GatedModel, gated_model
from stages.solving.gates.result import TrainedGates, gate_tensor
from stages.solving.units.ranking import parameters_to_remove
from stages.walk.backward import calibration_windows
from stages.walk.held_out import fitted_sequences

SAVE_EVERY = 8
"""Steps between two saved states."""
log = logging.getLogger("secateur")


def train(
    run: StageRun, model: StreamedModel, identity: str, kinds: Sequence[Units], free: Sequence[bool]
) -> TrainedGates:
    """Train gates, or restore them from the block store.

    kinds: heads and channels of every block; free: for each of them, whether the rules let any go, so that it is gated.
    Raises ParameterError where settings of solve and of the method do not fit together.
    """
    settings: DGating = registry.load(run.params.solve.method, run.params.methods.get(run.params.solve.method, {}))
    _check_settings(run.params, settings)
    gated = [units for units, may_go in zip(kinds, free, strict=True) if may_go]
    training = _Training(run.params, model, identity, settings, kinds, gated)
    return TrainedGates(run.run_block(Block("gates", 0, training.key()), training.write))


def split_windows() -> tuple[Tensor, Tensor]:
    """Token ids (windows, length) that gates are trained on, and those held out (see walk/held_out.py)."""
    windows = calibration_windows()
    if len(windows) < 2:
        raise ParameterError("calibration.sequences: training gates holds some out: expected at least 2, got 1")
    fitted = fitted_sequences(len(windows))
    return windows[:fitted], windows[fitted:]


def _check_settings(params: Params, settings: DGating) -> None:
    """Raise ParameterError where settings of solve and of the method do not fit together."""
    if params.solve.units.choice != "dense":
        raise ParameterError(
            f"solve.units.choice: {params.solve.method} chooses by its gates: expected dense, got "
            f"{params.solve.units.choice}"
        )
    if settings.weights == "lora":
        check_adapters()
    compensated = params.solve.units.compensation not in ("auto", "none")
    if params.solve.target == "corrected" and not (compensated and settings.weights == "frozen"):
        raise ParameterError(
            f"solve.target: the dense model's outputs are not what {params.solve.method} is after: expected auto or "
            "dense, got corrected: or set solve.units.compensation to weights, with weights frozen"
        )
    if settings.weights == "frozen":
        return
    if compensated and not params.solve.ordered:
        raise ParameterError(
            "solve.units.compensation: the stored statistics are not those of trained weights: expected auto or none, "
            f"got {params.solve.units.compensation}; or set solve.inputs to pruned and solve.walk to ordered"
        )


class _Training:
    """One training run: its key, its steps, its saved states.

    kinds: heads and channels of every block; gated: those of them that are gated.
    """

    def __init__(
        self, params: Params, model: StreamedModel, identity: str, settings: DGating, kinds: Sequence[Units],
        gated: Sequence[Units],
    ) -> None:  # fmt: skip
        self._params, self._model, self._settings = params, model, settings
        self._gated, self._everything = gated, parameters_of(kinds)
        self._budget = parameters_to_remove(kinds, params.solve.amount)
        self._windows, self._states = split_windows()[0], BlockStore("gate_states")
        self._facts = {
            "task": "gates",
            "model": identity,
            "activations": identity_of(ACTIVATIONS),
            "settings": dataclasses.asdict(settings),
            "asked": self._budget,
            "gated": [(units.block, units.kind) for units in gated],
            "code": code_of(_Training),
            **compute_facts(model.device, model.dtype, 1),
        }
        if settings.batch > len(self._windows):
            raise ParameterError(
                f"methods.{params.solve.method}.batch: expected at most the {len(self._windows)} "
                f"calibration.sequences that are not held out, got {settings.batch}"
            )

    def key(self, slot: int | None = None) -> str:
        """Key of the result in the block store, or of the state saved in slot 0 or 1."""
        return key_of(slot=slot, **self._facts)

    def write(self, path: Path) -> dict[str, float]:
        """Train from the last saved state, and write sizes, scales and trained weights; gives seconds and steps."""
        wall, cpu = time.perf_counter(), time.process_time()
        gated = gated_model(self._model, self._settings, self._gated, self._everything)
        held = sum(parameter.nbytes for parameter in gated.net.parameters()) / 1e9
        log.info(
            "gates are trained with the whole model in memory (weights of %.2f GB, %s)", held, self._settings.weights
        )
        optimizer = self._optimizer(gated)
        first = self._restore_state(gated, optimizer)
        last = self._run_steps(gated, optimizer, first)
        self._log_result(gated, last)
        self._write_result(gated, last, path)
        for slot in (0, 1):
            self._states.drop(self.key(slot=slot))
        return {
            "training_seconds": time.perf_counter() - wall,
            "training_cpu_seconds": time.process_time() - cpu,
            "training_steps": last - first,
        }

    def _optimizer(self, gated: GatedModel) -> Adam:
        """Adam with a rate for gates and one for weights, a parameter group for each parameter."""
        rates = [self._settings.learning_rate] * len(gated.families) + [self._settings.weight_rate] * len(gated.weights)
        parameters = zip(gated.trainable, rates, strict=True)
        return Adam([{"params": [parameter], "lr": rate} for parameter, rate in parameters])

    def _write_result(self, gated: GatedModel, steps: int, path: Path) -> None:
        """Write what TrainedGates reads."""
        tensors = dict[str, Tensor]()
        for units, family in zip(gated.units, gated.families, strict=True):
            tensors[gate_tensor(units.block, units.kind, "size")] = family.sizes().cpu()
            tensors[gate_tensor(units.block, units.kind, "scale")] = family.scales().cpu()
        tensors |= {linear.tensor: gated.weight(linear).cpu() for linear in gated.linears}
        at_zero = gated.parameters_at_zero(self._settings.tolerance) / self._everything
        write_tensors(path, tensors, {"facts": json.dumps({"steps": steps, "at_zero": at_zero})})

    def _run_steps(self, gated: GatedModel, optimizer: Adam, step: int) -> int:
        """Train from `step` on until the budget is met or the steps are over; gives the number of steps taken."""
        settings = self._settings
        with progress(total=settings.steps, initial=step, desc="gates", unit="step") as bar:
            while step < settings.steps and gated.parameters_at_zero(settings.tolerance) < self._budget:
                tokens = self._windows[self._windows_of(step)].long().to(self._model.device)
                optimizer.zero_grad(set_to_none=True)
                loss = gated.loss(tokens)
                if not bool(torch.isfinite(loss)):
                    raise NotFiniteError(
                        f"gates, step {step + 1}: the loss is not finite: lower methods.{self._params.solve.method}."
                        "learning_rate or weight_rate, or use compute.dtype float32"
                    )
                (loss + settings.strength(step) * gated.penalty()).backward()
                optimizer.step()
                step += 1
                if step % SAVE_EVERY == 0 and step < settings.steps:
                    self._save_state(gated, optimizer, step)
                at_zero = gated.parameters_at_zero(settings.tolerance) / self._everything
                bar.set_postfix_str(f"loss {loss.item():.3f}, {100 * at_zero:.1f} % at zero", refresh=False)
                bar.update()
        return step

    def _windows_of(self, step: int) -> list[int]:
        """The windows of a step's batch: all in random order, then all in another, the same however often resumed."""
        count, batch = len(self._windows), self._settings.batch
        places = range(step * batch, (step + 1) * batch)
        return [_permutation(count, self._settings.seed + place // count)[place % count] for place in places]

    def _log_result(self, gated: GatedModel, steps: int) -> None:
        """Log the steps taken and how much of the budget is at zero."""
        at_zero = gated.parameters_at_zero(self._settings.tolerance)
        rest = "" if at_zero >= self._budget else "; the smallest of the others make up the rest"
        log.info(
            "gates: %d steps, penalty up to %.3g: units of %.2f %% of the parameters are at zero, %.2f %% are to go%s",
            steps, self._settings.strength(steps - 1), 100 * at_zero / self._everything,
            100 * self._budget / self._everything, rest,
        )  # fmt: skip

    def _save_state(self, gated: GatedModel, optimizer: Adam, step: int) -> None:
        """Save parameters and Adam's state after `step` steps, over the state before the last: one is always whole."""
        tensors = dict[str, Tensor]()
        for number, parameter in enumerate(gated.trainable):
            tensors[f"{number}.value"] = parameter.detach()
            tensors |= {f"{number}.{name}": value for name, value in optimizer.state[parameter].items()}
        key = self.key(slot=step // SAVE_EVERY % 2)
        self._states.make(key, lambda path: write_tensors(path, tensors, {"step": str(step)}))

    def _restore_state(self, gated: GatedModel, optimizer: Adam) -> int:
        """Put the last intact state back; gives its step, 0 where there is none."""
        paths = [path for slot in (0, 1) if (path := self._states.find(self.key(slot=slot))) is not None]
        if not paths:
            return 0
        path = max(paths, key=lambda state: int(TensorFile(state).metadata["step"]))
        tensors = read_tensors(path)
        with torch.no_grad():
            for number, parameter in enumerate(gated.trainable):
                parameter.copy_(tensors.pop(f"{number}.value"))
                names = [name for name in tensors if name.startswith(f"{number}.")]
                state = {name.partition(".")[2]: tensors.pop(name) for name in names}
                optimizer.state[parameter] = {
                    name: value if name == "step" else value.to(parameter) for name, value in state.items()
                }
        return int(TensorFile(path).metadata["step"])


@cache
def _permutation(count: int, seed: int) -> list[int]:
    """A random order of 0 to count - 1 that depends on nothing but the seed."""
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order
