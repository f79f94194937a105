"""Which heads and channels of the whole model stay: scores from the dense model's statistics, ranked to a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from stages import methods
from stages.artifacts.code import code_of
from stages.artifacts.manifest import verified
from stages.artifacts.store import key_of
from stages.backward import saliences
from stages.blocks.contract import Block
from stages.clock import Clock
from stages.errors import ArchitectureError, NotPositiveDefiniteError, ParameterError
from stages.gate_training import train
from stages.linalg.masks import removed_count
from stages.models.compute import compute_facts
from stages.models.hetero import TYPES
from stages.models.streamed import StreamedModel
from stages.models.units import Kind, Units, parameters_of, units_of
from stages.params import Params
from stages.params.pruning import Solve
from stages.places import MODEL, STATISTICS, block_file
from stages.rules import Place, governing, tell
from stages.runner import StageRun, progress
from stages.structured.contract import UnitMethod, UnitScorer
from stages.structured.ranking import Ranked, by_budget, keep_best, literal
from stages.tensorfile import read_tensors, write_tensors
from stages.trained import Trained
from stages.unit_problems import asked_of, statistics_of, unit_problem
from stages.workspace import open_model, read_statistics

ROLES: dict[Kind, str] = {"heads": "attention", "channels": "mlp"}
Kept = dict[Kind, Tensor]
"""Which units (units,) bool of a block stay, by kind."""


def method_of(params: Params) -> UnitMethod:
    """The structured method of the parameters, with its settings."""
    method: UnitMethod = methods.load(params.solve.method, params.methods.get(params.solve.method, {}))
    return method


def trained(run: StageRun, model: StreamedModel, identity: str) -> Trained | None:
    """The gates of the model's units, trained now or found; None where the method scores units without training."""
    if methods.room_of(run.params.solve.method) != "gating":
        return None
    settings, kinds = run.params.solve, _checked_units(run.params, model)
    scores = [torch.zeros(one.count) for one in kinds]
    places = _places(settings, kinds, scores, _rules_of(settings, kinds, model.blocks))
    _ranked(settings, method_of(run.params), kinds, places)  # a budget that no scores can meet is told before training
    if all(place.kept == len(place.scores) for place in places):
        raise ParameterError(
            f"solve.rules: every head and channel is to stay: {settings.method} has nothing to gate: leave some out of "
            "the rules"
        )
    return train(run, model, identity, kinds, [place.kept != len(place.scores) for place in places])


def choose(
    run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any], gates: Trained | None = None
) -> list[Kept]:
    """The units of every block that stay; `statistics` is the manifest of the dense model's.

    gates: whose sizes are the scores, of a method that trains them.

    Raises ParameterError where the budget or a rule cannot be met, ArchitectureError where units cannot be told.
    """
    units = _checked_units(run.params, model)
    if gates is None:
        found = _scores(run, model, identity, statistics)
        scores = [found[one.block][one.kind] for one in units]
    else:
        scores = [gates.sizes(one) for one in units]
    settings = run.params.solve
    rules = _rules_of(settings, units, model.blocks)
    places = _places(settings, units, scores, rules)
    told = ["ranked with the rest" if place.kept is None else f"{place.kept} kept" for place in places]
    tell(rules, _parts(units), told, "times all heads or all channels of a block")
    kept: list[Kept] = [{} for _ in range(model.blocks)]
    for one, keep in zip(units, _ranked(run.params.solve, method_of(run.params), units, places), strict=True):
        kept[one.block][one.kind] = keep
    return kept


def _checked_units(params: Params, model: StreamedModel) -> list[Units]:
    """All units of the model, block after block, once it is known that they can be what solve asks for."""
    check_rules(params.solve, model)
    _check_units(params.solve, method_of(params))
    return [one for index in range(model.blocks) for one in units_of(model, index)]


def check_rules(settings: Solve, model: StreamedModel) -> None:
    """Raise ParameterError where solve asks of a structured method what only layer-wise ones know.

    Raises ArchitectureError for a checkpoint whose units were removed before.
    """
    method, kind = settings.method, str(model.config.model_type)
    if kind in TYPES:
        raise ArchitectureError(
            f"{MODEL}: {kind} has lost heads or channels before, and {method} cannot take more of it: expected a dense "
            "model; fetch that one and set solve.sparsity to the whole that is to go"
        )
    for number, rule in enumerate(settings.rules):
        unknown = set(rule.roles or ()) - set(ROLES.values())
        if unknown:
            raise ParameterError(
                f"solve.rules[{number}].roles: {method} removes whole units: expected attention (heads) or mlp "
                f"(channels), got {', '.join(sorted(unknown))}"
            )


def _check_units(settings: Solve, scorer: UnitMethod) -> None:
    """Raise ParameterError where solve.units asks for two things that do not go together."""
    asked, method = settings.units, settings.method
    if asked.ranking == "literal":
        for name, value, only in (("multiple", asked.multiple, 1), ("allocation", asked.allocation, "auto")):
            if value not in (only, "global"):
                raise ParameterError(
                    f"solve.units.{name}: ranking: literal puts one threshold through single units of all blocks: "
                    f"expected {only}, got {value}: or set ranking to parameters"
                )
    if asked.choice == "pruned" and scorer.needs & {"salience", "fisher"}:
        raise ParameterError(
            f"solve.units.choice: {method} scores units by gradients, which are the dense model's: expected dense, got "
            f"pruned: or use a method, or settings in methods.{method}, without gradients"
        )


def _parts(units: Sequence[Units]) -> list[Place]:
    """What rules can speak of, of a structured method."""
    return [Place(ROLES[one.kind], one.block) for one in units]


def _rules_of(settings: Solve, units: Sequence[Units], blocks: int) -> list[int | None]:
    """For the heads and the channels of each block the number of the rule that settles how many stay."""
    return governing(settings.rules, _parts(units), blocks)


def _places(
    settings: Solve, units: Sequence[Units], scores: Sequence[Tensor], rules: Sequence[int | None]
) -> list[Ranked]:
    return [_place(settings, *given) for given in zip(units, scores, rules, strict=True)]


def _place(settings: Solve, units: Units, scores: Tensor, number: int | None) -> Ranked:
    """The units of one place as they are ranked; their number is settled where rule `number` says so."""
    multiple = settings.units.multiple if units.kind == "channels" else 1
    if multiple > units.count:
        raise ParameterError(
            f"solve.units.multiple: expected at most the {units.count} channels of block {units.block}, got {multiple}"
        )
    sparsity = None if number is None else settings.rules[number].sparsity
    if sparsity is None:
        return Ranked(scores, units.parameters, None, multiple)
    kept = units.count - removed_count(units.count, sparsity)
    if kept < units.count:
        kept = kept // multiple * multiple
    if kept == 0:
        raise ParameterError(
            f"solve.rules[{number}].sparsity: {sparsity:g} would leave block {units.block} no "
            f"{units.kind} of its {units.count}: expected at most {1 - multiple / units.count:.3f}"
        )
    return Ranked(scores, units.parameters, kept, multiple)


def _ranked(settings: Solve, method: UnitMethod, units: Sequence[Units], places: Sequence[Ranked]) -> list[Tensor]:
    allocation = method.allocation if settings.units.allocation == "auto" else settings.units.allocation
    if settings.units.ranking == "literal":
        factors = [4 * one.columns.shape[1] / 3 if one.kind == "heads" else 1.0 for one in units]
        return literal(places, settings.amount, factors)
    removed = asked_of(units, settings.amount)
    if allocation == "global":
        return by_budget(places, removed)
    return _uniform(settings, units, places, removed)


def _uniform(settings: Solve, units: Sequence[Units], places: Sequence[Ranked], removed: int) -> list[Tensor]:
    """The same number of heads and of channels of every block that no rule settles, channels so that the budget is met.

    Raises ParameterError where blocks differ, or channels cannot make up for what heads leave.
    """
    free = [(one, place) for one, place in zip(units, places, strict=True) if place.kept is None]
    if len({(one.kind, one.count, one.parameters) for one, _ in free}) > len({one.kind for one, _ in free}):
        raise ParameterError(
            "solve.units.allocation: uniform needs blocks of the same widths: set it to global, or settle the "
            "blocks that differ in solve.rules"
        )
    short = removed - sum(
        (one.count - place.kept) * one.parameters
        for one, place in zip(units, places, strict=True)
        if place.kept is not None
    )
    kept = dict[Kind, int]()
    for kind in ("heads", "channels"):
        group = [one for one, _ in free if one.kind == kind]
        if not group:
            continue
        first, multiple = group[0], 1 if kind == "heads" else settings.units.multiple
        wanted = max(short, 0) / (len(group) * first.parameters)
        if kind == "heads" and len(group) < len(free):
            wanted = round(max(short, 0) / parameters_of([one for one, _ in free]) * first.count)
        kept[kind] = first.count - min(math.ceil(wanted), first.count - 1)
        if kept[kind] < first.count:
            kept[kind] = kept[kind] // multiple * multiple
        short -= len(group) * (first.count - kept[kind]) * first.parameters
    if short > 0 or 0 in kept.values():
        raise ParameterError(
            f"solve.sparsity: {settings.amount:g} cannot be met with the same widths in every block: lower it, "
            "protect less, or set solve.units.allocation to global"
        )
    return [
        keep_best(place.scores, kept[one.kind] if place.kept is None else place.kept)
        for one, place in zip(units, places, strict=True)
    ]


def _scores(
    run: StageRun, model: StreamedModel, identity: str, statistics: Mapping[str, Any]
) -> list[dict[str, Tensor]]:
    """Scores of every block's units by kind, made or restored from the block store."""
    method = run.params.solve.method
    walks_back = bool(method_of(run.params).needs - {"coupled"})
    left = saliences(run, model, identity) if walks_back else [None] * model.blocks
    facts = {
        "model": identity,
        "method": method,
        "settings": run.params.methods.get(method, {}),
        "code": code_of(_write_scores, *methods.modules_of(method, method_of(run.params))),
        **compute_facts(model.device, model.dtype, run.params.compute.chunk),
    }
    work = []
    for index, path in enumerate(left):
        entering = statistics["files"][block_file(index)], None if path is None else path.name
        key = key_of(task="scores", block=index, entering=entering, **facts)
        work.append((Block("scores", index, key), partial(_write_scores, run.params, index, dict(statistics), path)))
    with progress(total=model.blocks, desc="scores", unit="block") as bar:
        return [read_tensors(run.note(done)) for done in run.blocks.each(work, bar.update)]


def _write_scores(
    params: Params, index: int, statistics: dict[str, Any], backward: Path | None, path: Path
) -> dict[str, float]:
    model, _ = open_model(params.compute)
    found = read_statistics(verified(STATISTICS, block_file(index), statistics), model.device)
    scorer, clock, scores = cast(UnitScorer, method_of(params)), Clock(), dict[str, Tensor]()
    for units in units_of(model, index):
        problem = unit_problem(model, units, statistics_of(units.sink.name, found), scorer.needs, backward)
        try:
            with clock.timing("solver", model.device):
                scores[units.kind] = scorer(problem).cpu()
        except NotPositiveDefiniteError as fault:
            raise NotPositiveDefiniteError(f"block {index}, {units.sink.name}: {fault}") from None
    write_tensors(path, scores)
    return {"solver_seconds": clock.solver_seconds, "solver_cpu_seconds": clock.solver_cpu_seconds}
