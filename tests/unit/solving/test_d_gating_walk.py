"""Gated models through the walk and the assemble stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stages.artifacts.manifest import read_json, read_manifest
from stages.artifacts.places import block_file
from stages.artifacts.solution import read_rows, read_units
from stages.artifacts.store import FOLDER
from stages.assembly import verify
from stages.models.loading.load import load_model
from stages.models.streaming.units import units_of
from stages.params import Compute
from stages.runtime.workspace import open_model
from stages.solving.gates.model import GatedModel
from stages.solving.gates.result import TrainedGates
from stages.solving.gates.scales import POWERS
from stages.solving.gates.training import split_windows
from stages.walk.backward import calibration_windows
from stages.walk.pruned import read_weights
from tests.helpers.gate_training import MODEL, SOLUTION, gate_settings
from tests.helpers.structured_solutions import answering


@pytest.mark.parametrize("weights", ["frozen", "trained", "lora"])
@pytest.mark.parametrize("layout", ["hetero", "padded"])
def test_the_checkpoint_is_the_solution(layout, weights, workspace, monkeypatch):
    place = workspace("llama", **gate_settings(weights), assemble={"layout": layout})
    monkeypatch.setattr(verify, "answers", answering())
    place.run("extract", "statistics", "solve", "assemble")
    model, _ = open_model(Compute(device="cpu"))
    masked = load_model(MODEL)
    for index in range(model.blocks):
        for name, weight in read_weights(SOLUTION / block_file(index), model.linears(index), model).items():
            masked.get_parameter(name).data = weight
    tokens = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(3))
    cut = load_model(Path("data/pruned"), trust_remote_code=True)
    with torch.no_grad():
        expected = masked(input_ids=tokens).logits
        torch.testing.assert_close(cut(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-5)
    assert cut.num_parameters() < masked.num_parameters() or layout == "padded"


@pytest.mark.parametrize("weights", ["frozen", "trained", "lora"])
@pytest.mark.parametrize("walk", ["ordered", "block"])
def test_on_the_pruned_models_inputs(walk, weights, workspace):
    """Without compensation weights are what they are, whatever enters."""
    place = workspace("llama", **gate_settings(weights, inputs="pruned", walk=walk))
    place.run("extract", "statistics", "solve")
    solution = place.bytes_of("solution")
    errors = [row["relative_error"] for index in range(3) for row in read_rows(SOLUTION / block_file(index))]
    assert all(0 <= error < 10 for error in errors)
    place.run("solve")
    assert place.bytes_of("solution") == solution
    ours = _weights_of()
    place.change(**gate_settings(weights))
    place.run("solve")
    assert all(torch.equal(weight, ours[name]) for name, weight in _weights_of().items())


def _weights_of():
    model, found = open_model(Compute(device="cpu"))[0], {}
    for index in range(model.blocks):
        found |= read_weights(SOLUTION / block_file(index), model.linears(index), model)
    return found


def test_trained_weights_are_compensated_where_that_is_asked(workspace):
    place = workspace("llama", **gate_settings("trained", inputs="pruned"))
    place.run("extract", "statistics", "solve")
    plain = _weights_of()
    place.change(**gate_settings("trained", inputs="pruned", units={"compensation": "weights"}))
    place.run("solve")
    changed = {name for name, weight in _weights_of().items() if not torch.equal(weight, plain[name])}
    assert changed
    assert all("o_proj" in name or "down_proj" in name for name in changed)


def test_what_is_told_of_a_training(workspace):
    """Seconds and steps in the cost; in the manifest what is the same in every run."""
    place = workspace("llama", **gate_settings())
    place.run("extract", "statistics", "solve")
    cost = json.loads(Path("metrics/cost/solve.json").read_text(encoding="utf-8"))
    assert cost["training_steps"] == 6
    assert cost["training_seconds"] > 0
    facts = read_manifest(SOLUTION)
    assert set(facts["training"]) == {"steps", "at_zero", "power"}
    assert facts["settings"]["d_gating"]["penalty"] == 40.0
    place.run("solve")
    assert "training_steps" not in read_json(Path("metrics/cost/solve.json"))
    assert read_manifest(SOLUTION)["training"] == facts["training"]


def test_training_ends_when_the_budget_is_met(workspace):
    place = workspace("llama", **gate_settings(settings={"steps": 60, "penalty": 2000.0, "tolerance": 0.05}))
    place.run("extract", "statistics", "solve")
    facts = read_manifest(SOLUTION)["training"]
    assert facts["steps"] < 60
    assert facts["at_zero"] >= 0.3


def test_bfloat16_checkpoints_keep_their_dtype(workspace):
    place = workspace("llama", **gate_settings("trained"), compute={"dtype": "bfloat16"})
    place.run("extract", "statistics", "solve")
    (path,) = (FOLDER / "gates").glob("*.safetensors")
    model, _ = open_model(Compute(device="cpu", dtype="bfloat16"))
    linear = model.linears(0)[0]
    assert TrainedGates(path).weight(linear, units_of(model, 0), model).dtype == torch.float32
    assert _weights_of()[linear.tensor].dtype == model.weights.dtype


def test_the_power_of_the_scales_is_the_best_on_sequences_that_training_did_not_see(workspace):
    place = workspace("llama", **gate_settings())
    place.run("extract", "statistics", "solve")
    found = read_manifest(SOLUTION)["training"]["power"]
    held = split_windows()[1].long()
    assert len(held) == 1
    losses = {}
    for power in POWERS:
        gates = next((FOLDER / "gates").glob("*.safetensors"))
        model, masked = open_model(Compute(device="cpu"))[0], load_model(MODEL)
        for index in range(model.blocks):
            kinds, kept = units_of(model, index), read_units(SOLUTION / block_file(index))
            for one in kinds:
                weight = TrainedGates(gates, power).weight(one.sink, kinds, model).float()
                weight = weight * one.kept_columns(kept[one.kind])
                masked.get_parameter(one.sink.tensor).data = one.sink.weight(weight).contiguous()
        with torch.no_grad():
            losses[power] = float(masked(input_ids=held, labels=held).loss)
    assert found == min(losses, key=losses.__getitem__)


def test_one_sequence_is_too_few(workspace):
    place = workspace("llama", **gate_settings(), calibration={"sequences": 1})
    place.run("extract", "statistics")
    assert place.fail("solve") == (
        2,
        "solve: error: calibration.sequences: training gates holds some out: expected at least 2, got 1",
    )


def test_no_held_out_window_is_trained_on(workspace, monkeypatch):
    place, seen = workspace("llama", **gate_settings("frozen")), list[torch.Tensor]()
    loss = GatedModel.loss
    monkeypatch.setattr(GatedModel, "loss", lambda self, tokens: seen.append(tokens) or loss(self, tokens))
    place.run("extract", "statistics", "solve")
    trained, held = split_windows()
    assert len(held) == max(1, len(calibration_windows()) // 8)
    seen_rows = {tuple(window) for window in torch.cat(seen).tolist()}
    assert seen_rows <= {tuple(window) for window in trained.tolist()}
    assert not seen_rows & {tuple(window) for window in held.tolist()}
