"""Drives each family of methods over a model: the only place beside methods/ that asks for a method's family."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stages.artifacts.calibration import rank_warning
from stages.methods import registry
from stages.methods.registry import Family
from stages.runtime.stage import StageRun
from stages.solving.gates.plan import gate_plans
from stages.solving.linear.plan import linear_plans
from stages.solving.plan import Solved
from stages.solving.rotation.walk import solve_sliced
from stages.solving.units.plan import unit_plans
from stages.solving.walk import Job, solve_blocks

log = logging.getLogger("secateur")


def _linears(run: StageRun) -> Solved:
    """Layer-wise pruning: single weights of linears, or q and k jointly, as solve.rules assign the methods."""
    job = _open(run)
    return solve_blocks(job, linear_plans(run.params, job.model, job.statistics))


def _units(run: StageRun) -> Solved:
    """Structured pruning of heads and MLP channels, chosen by scores."""
    job = _open(run)
    return solve_blocks(job, unit_plans(run, job.model, job.identity, job.dense))


def _gates(run: StageRun) -> Solved:
    """Structured pruning of heads and MLP channels, chosen by trained gates."""
    job = _open(run)
    plans, facts = gate_plans(run, job.model, job.identity)
    return solve_blocks(job, plans, {"training": facts})


FAMILIES: dict[Family, Callable[[StageRun], Solved]] = {
    "linear": _linears,
    "attention": _linears,
    "units": _units,
    "gates": _gates,
    "rotation": solve_sliced,
}
"""Solves the whole model by a method of the family, for `solve` to publish."""


def solve_model(run: StageRun) -> Solved:
    """Prune the whole model by solve.method; finished blocks are restored from the block store."""
    return FAMILIES[registry.find(run.params.solve.method).family](run)


def _open(run: StageRun) -> Job:
    """The model and its statistics; warns where too few calibration tokens leave Gram matrices rank-deficient."""
    job = Job.open(run)
    short = rank_warning(job.dense["calibration"])
    if short:
        log.warning(short)
    return job
