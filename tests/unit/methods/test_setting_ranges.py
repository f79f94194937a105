"""Every numeric setting of a method: the end of its range is taken, what lies just beyond it is refused by name."""

from __future__ import annotations

import math
import re

import pytest

from stages.errors import ParameterError
from stages.methods import registry

# What makes a setting count: a value that another setting makes useless is refused for that reason.
BESIDE = {
    "newton.penalty": {"form": "penalty"},
    "newton.iterations": {"form": "penalty"},
    "d_gating.weight_rate": {"weights": "lora"},
    "d_gating.rank": {"weights": "lora"},
    "admm.iterations": {"selections": 0},
}
LEAST = {
    "admm.iterations": 1, "admm.penalties": 1, "admm.selections": 0, "admm.ridge": 0.0, "admm.refine_steps": 0,
    "admm.relaxation": 1.0, "alps.iterations": 1, "alps.tolerance": 0.0, "alps.ridge": 0.0, "alps.refine_steps": 0,
    "attention_gd.penalty": 0.0, "attention_gd.steps": 1, "attention_gd.momentum": 0.0, "attention_gd.batches": 0,
    "attention_gd.batch": 1, "attention_iht.steps": 1, "attention_iht.warm": 0, "attention_iht.penalty": 0.0,
    "attention_iht.batch": 1, "d_gating.depth": 2, "d_gating.steps": 1, "d_gating.batch": 1, "d_gating.seed": 0,
    "d_gating.tolerance": 0.0, "d_gating.rank": 1, "iht.iterations": 1, "iht.mu": 0.0, "iht.refine_steps": 0,
    "maiht.iterations": 1, "maiht.mu": 0.0, "maiht.refine_steps": 0, "newton.damping": 0.0, "newton.iterations": 1,
    "obs_units.rounds": 1, "obs_units.damping": 0.0, "slicegpt.round": 1, "sparsegpt.tile": 1, "sparsegpt.damping": 0.0,
    "wanda.activation_power": 0.0,
}  # fmt: skip
MORE_THAN = {
    "admm.penalty": 0.0, "admm.penalty_end": 0.0, "alps.penalty": 0.0, "attention_gd.step": 0.0,
    "attention_iht.rate": 0.0, "d_gating.learning_rate": 0.0, "d_gating.weight_rate": 0.0, "d_gating.penalty": 0.0,
    "newton.removed": 0.0, "newton.penalty": 0.0,
}  # fmt: skip
LESS_THAN = {"admm.relaxation": 2.0, "attention_gd.momentum": 1.0, "d_gating.tolerance": 1.0, "newton.removed": 1.0}
ANY = {"attention_gd.seed", "attention_iht.seed"}


def load(setting: str, value: float) -> object:
    name, key = setting.split(".")
    return registry.load(name, {**BESIDE.get(setting, {}), key: value})


def refused(setting: str, value: float) -> None:
    with pytest.raises(ParameterError, match=re.escape(setting)):
        load(setting, value)


def beyond(value: float, toward: float) -> float:
    return value + round(math.copysign(1, toward)) if isinstance(value, int) else math.nextafter(value, toward)


@pytest.mark.parametrize("setting", LEAST)
def test_the_least_value_is_taken_and_none_below(setting):
    assert getattr(load(setting, LEAST[setting]), setting.split(".")[1]) == LEAST[setting]
    refused(setting, beyond(LEAST[setting], -math.inf))


@pytest.mark.parametrize("setting", MORE_THAN)
def test_an_excluded_lower_end_is_refused_and_what_lies_above_it_is_taken(setting):
    refused(setting, MORE_THAN[setting])
    load(setting, 1e-3)


@pytest.mark.parametrize("setting", LESS_THAN)
def test_an_excluded_upper_end_is_refused_and_what_lies_below_it_is_taken(setting):
    refused(setting, LESS_THAN[setting])
    load(setting, beyond(LESS_THAN[setting], -math.inf))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("setting", [*LEAST, *MORE_THAN])
def test_what_is_no_finite_number_is_refused(setting, value):
    refused(setting, value)


def test_the_range_of_every_numeric_setting_is_told_here():
    numeric = {
        f"{name}.{key}"
        for name in registry.names()
        for key, default in registry.settings_of(name).items()
        if isinstance(default, int | float) and not isinstance(default, bool)
    }
    assert numeric == {*LEAST, *MORE_THAN, *ANY}
