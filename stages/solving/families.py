"""How the methods of each family are driven over a model: the only place, beside methods/, that knows the families."""

from __future__ import annotations

import logging
from collections.abc import Callable

from stages.artifacts.calibration import rank_shortfall
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
    """Linear by linear: every block's weights, or its attention matrix, by the plans of solve.rules."""
    job = _opened(run)
    return solve_blocks(job, linear_plans(run.params, job.model, job.statistics))


def _units(run: StageRun) -> Solved:
    """Whole heads and channels, chosen by scores."""
    job = _opened(run)
    return solve_blocks(job, unit_plans(run, job.model, job.identity, job.dense))


def _gates(run: StageRun) -> Solved:
    """Whole heads and channels, chosen by gates that are trained."""
    job = _opened(run)
    plans, facts = gate_plans(run, job.model, job.identity)
    return solve_blocks(job, plans, {"training": facts})


FAMILIES: dict[Family, Callable[[StageRun], Solved]] = {
    "linear": _linears,
    "attention": _linears,
    "units": _units,
    "gates": _gates,
    "rotation": solve_sliced,
}


def solve_model(run: StageRun) -> Solved:
    """Prune the model by solve.method; finished blocks come from the block store."""
    return FAMILIES[registry.find(run.params.solve.method).family](run)


def _opened(run: StageRun) -> Job:
    """The model and its statistics; warns of Gram matrices of too low a rank."""
    job = Job.of(run)
    short = rank_shortfall(job.dense["calibration"])
    if short:
        log.warning(short)
    return job
