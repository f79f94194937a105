"""LLM-Pruner's scores: the slow version's, resumable, and telling of the loss without a unit."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.store import BlockStore
from stages.errors import ArtifactError
from stages.methods import registry
from stages.methods.units.contract import UnitProblem
from stages.models.streaming.units import KINDS, units_of
from stages.params import Compute
from stages.runtime.workspace import open_model
from stages.walk.backward import Backward, calibration_windows, read_salience
from tests.helpers.tiny import save_tokens
from tests.reference.llm_pruner import score

MODEL = Path("data/model")


def backward(chunk=4):
    model, identity = open_model(Compute(device="cpu", chunk=chunk))
    return Backward(model, identity, chunk), model


def problem_of(units, salience):
    nothing = torch.zeros(units.sink.shape[::-1])
    return UnitProblem(
        dense=nothing.T, gram=nothing[:, :1], mean=nothing[:, 0], tokens=1, columns=units.columns,
        parameters=units.parameters, salience=salience,
    )  # fmt: skip


def whole_gradients(windows):
    """Gradients of each sequence's loss, from the whole model, weights as (d_out, d_in), and the weights."""
    real = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    found = []
    for tokens in windows.long():
        real.zero_grad()
        real(tokens[None], labels=tokens[None], use_cache=False).loss.backward()
        found.append({name: value.grad.clone() for name, value in real.named_parameters()})
    return found, {name: value.detach() for name, value in real.named_parameters()}


@pytest.mark.parametrize("architecture", ["llama", "llama_bias", "opt", "gpt2", "gpt_neox"])
def test_scores_are_the_slow_versions(architecture, workspace, tmp_path):
    workspace(architecture, calibration={"sequences": 3, "length": 12}).run("extract")
    walk, model = backward()
    gradients, parameters = whole_gradients(calibration_windows())
    for index in (2, 1):
        walk.write(index, tmp_path / f"{index}")
    for units in units_of(model, 1):
        salience = read_salience(tmp_path / "1", units.kind)
        problem = problem_of(units, salience)
        linears = {linear.tensor: linear for linear in model.linears(1)}
        oriented = [
            {name: linears[name].weight(value) if name in linears else value for name, value in one.items()}
            for one in [parameters, *gradients]
        ]
        for order, importance, aggregate in itertools.product(
            ("first", "second", "mixed"), ("element", "vector"), ("sum", "product", "max", "last")
        ):
            settings = {"order": order, "importance": importance, "aggregate": aggregate}
            found = registry.load("llm_pruner", settings)(problem) * units.parameters
            some = range(0, units.count, max(units.count // 3, 1))
            expected = [score(units, unit, oriented[1:], oriented[0], order, importance, aggregate) for unit in some]
            torch.testing.assert_close(found[list(some)], torch.tensor(expected), rtol=1e-3, atol=0)


def test_a_channels_first_order_salience_tells_the_loss_without_it(workspace, tmp_path):
    """Rank correlation of |Σ w g| over a channel's column of down with the change of the loss when it is removed."""
    workspace("llama", calibration={"sequences": 6, "length": 48}).run("extract")
    walk, model = backward()
    walk.write(2, tmp_path / "2")
    units = units_of(model, 2)[1]
    scorer = registry.load("llm_pruner", {"importance": "vector", "aggregate": "last"})
    scores = scorer(problem_of(units, read_salience(tmp_path / "2", "channels")))
    windows = calibration_windows().long()
    real = AutoModelForCausalLM.from_pretrained(MODEL).eval()
    weight = real.get_parameter(units.sink.tensor)

    @torch.no_grad()
    def loss():
        return float(real(windows, labels=windows, use_cache=False).loss)

    before, changes = loss(), []
    for column in units.columns[:, 0].tolist():
        kept = weight[:, column].clone()
        weight.data[:, column] = 0
        changes.append(abs(loss() - before))
        weight.data[:, column] = kept
    ranks = torch.stack([torch.tensor(changes).argsort().argsort(), scores.argsort().argsort()]).double()
    assert torch.corrcoef(ranks)[0, 1] > 0.8


def test_a_walk_that_was_killed_goes_on_with_the_same_bits(workspace, tmp_path):
    workspace("llama").run("extract")
    walk, model = backward()
    for index in reversed(range(model.blocks)):
        walk.write(index, tmp_path / f"whole-{index}")
    again, _ = backward()
    again.write(0, tmp_path / "last only")
    assert (tmp_path / "last only").read_bytes() == (tmp_path / "whole-0").read_bytes()
    again.forget()
    again.write(1, tmp_path / "from nothing")
    assert (tmp_path / "from nothing").read_bytes() == (tmp_path / "whole-1").read_bytes()
    again.forget()
    assert not list(BlockStore("gradients")._folder.iterdir())
    assert set(read_salience(tmp_path / "whole-0", KINDS[0])) == set(read_salience(tmp_path / "whole-0", KINDS[1]))


def test_texts_that_the_states_were_not_made_of_are_refused(workspace):
    place = workspace("llama")
    place.run("extract")
    (place.folder / "data" / "texts").rename(place.folder / "data" / "old")
    save_tokens(place.folder / "data" / "texts", seed=1)
    with pytest.raises(ArtifactError, match="made from other texts"):
        calibration_windows()


def test_float16_models_are_differentiated_in_float32(workspace, tmp_path):
    place = workspace("llama", compute={"dtype": "float16"})
    place.run("extract")
    for dtype in ("float16", "float32"):
        model, identity = open_model(Compute(device="cpu", dtype=dtype))
        walk = Backward(model, identity, 4)
        walk.write(2, tmp_path / dtype)
        walk.forget()
    found, expected = (read_salience(tmp_path / dtype, KINDS[0]) for dtype in ("float16", "float32"))
    for term, values in expected.items():
        assert values.any()
        torch.testing.assert_close(found[term], values)
