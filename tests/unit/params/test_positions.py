"""More tokens at once than a model has positions, or fewer than a linear has inputs: told before anything is run."""

from __future__ import annotations

import json

import pytest

from stages.artifacts.calibration import rank_warning
from stages.errors import ParameterError
from stages.params import Params
from stages.params.positions import check_positions
from tests.helpers.tiny import params_values

OFF = {"speed": {"repeats": 0}, "attention": {"sequences": 0}}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"calibration": {"length": 65}},
            "calibration.length: expected at most 64, the positions .*, got 65: set it to",
        ),
        (
            {"evaluate": {"perplexity": {"window": 65, "stride": 1}}},
            "evaluate.perplexity.window: expected at most 64, .*, got 65: ",
        ),
        (
            {"evaluate": {"perplexity": {"window": 64, "stride": 1, "bos": True}}},
            r"evaluate.perplexity.window: expected at most 64, .* got 65 \(the BOS token counts\)",
        ),
        ({"evaluate": {"tasks": {"names": ["a"], "max_length": 65}}}, "evaluate.tasks.max_length: expected at most 64"),
        ({"evaluate": {"attention": {"length": 65}}}, "evaluate.attention.length: expected at most 64"),
        (
            {"evaluate": {"speed": {"prompt": 60, "generate": 5}}},
            r"evaluate.speed.prompt \+ generate: expected at most 64",
        ),
    ],
)
def test_every_setting_that_needs_more_positions_than_there_are_is_named(sections, told):
    params = Params.model_validate(params_values(**sections))
    check_positions(params, None)
    check_positions(params, 65)
    with pytest.raises(ParameterError, match=told):
        check_positions(params, 64)


def test_what_is_off_and_what_is_just_short_enough_is_let_through():
    perplexity = {"window": 64, "stride": 1}
    longest = {"calibration": {"length": 64}, "evaluate": {"perplexity": perplexity, "attention": {"length": 64}}}
    check_positions(Params.model_validate(params_values(**longest)), 64)
    check_positions(Params.model_validate(params_values(evaluate=OFF)), 16)
    check_positions(Params.model_validate(params_values(calibration={"length": 999})), 16, ("evaluate.perplexity",))


@pytest.mark.parametrize("architecture", ["gpt2", "opt"])
def test_learned_positions_that_do_not_suffice_are_told_by_extract(architecture, workspace):
    w = workspace(architecture, calibration={"sequences": 2, "length": 80})
    code, line = w.fail("extract")
    assert code == 2
    assert "calibration.length: expected at most 64, the positions that the model was made for" in line


def test_fewer_tokens_than_a_linear_has_inputs_are_told_in_log_and_manifest(workspace, logged):
    w = workspace(calibration={"sequences": 3, "length": 15})
    told = (
        "calibration has 3 sequences of 15 tokens: the Gram matrix of model.layers.0.mlp.down_proj is of rank at most "
        "45 for inputs of width 48: use more sequences"
    )
    for stage in ("extract", "statistics", "solve"):
        logged.clear()
        w.run(stage)
        assert [record.message for record in logged.records if "rank" in record.message] == [told] * (
            stage != "statistics"
        )
    w.run("assemble")
    assert rank_warning(json.loads((w.folder / "data/pruned/pruning_manifest.json").read_text())["calibration"]) == told


def test_enough_tokens_are_no_shortfall():
    widest = {"linear": "down", "inputs": 48}
    assert rank_warning({"sequences": 3, "length": 16, "widest": widest}) is None
    assert "rank at most 47" in (rank_warning({"sequences": 1, "length": 47, "widest": widest}) or "")
    assert rank_warning({"sequences": 3, "length": 1}) is None
