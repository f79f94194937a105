"""Gates trained on a causal model's units: what of the solution they decide, and what training may not depend on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.artifacts.manifest import read_manifest, write_manifest
from stages.artifacts.places import block_file
from stages.artifacts.solution import read_rows, read_units
from stages.artifacts.store import FOLDER
from stages.errors import GatingError, ParameterError
from stages.gating.gate import gate
from stages.gating.gates import Gates
from stages.gating.groups import units
from stages.gating.inputs import ScaledUnits, scaled_inputs
from stages.methods import registry
from stages.methods.gates.d_gating import DGating
from stages.models.loading import adapters
from stages.models.loading.load import load_model
from stages.models.streaming.units import parameters_of, units_of
from stages.params import Compute
from stages.params.yamlfile import read_yaml
from stages.runtime.workspace import open_model
from stages.solving.gates import training as gate_training
from stages.solving.gates.model import gated_model
from stages.solving.gates.result import TrainedGates
from stages.walk.pruned import read_weights
from tests.helpers.committed import ROOT
from tests.helpers.gate_training import MODEL, SOLUTION, gate_settings

TRAINED = pytest.mark.parametrize("weights", ["trained", "lora"])


@pytest.fixture
def solved(workspace):
    """A workspace whose solve stage has run with these settings."""

    def make(architecture="llama", *arguments, **options):
        place = workspace(architecture, **gate_settings(*arguments, **options))
        place.run("extract", "statistics", "solve")
        return place

    return make


def everything():
    model, _ = open_model(Compute(device="cpu"))
    return model, [one for index in range(model.blocks) for one in units_of(model, index)]


def kept_units(model):
    return [read_units(SOLUTION / block_file(index)) for index in range(model.blocks)]


def solution_weights(model):
    found = {}
    for index in range(model.blocks):
        found |= read_weights(SOLUTION / block_file(index), model.linears(index), model)
    return found


def trained_file():
    (path,) = (FOLDER / "gates").glob("*.safetensors")
    return TrainedGates(path, read_manifest(SOLUTION)["training"]["power"])


@pytest.mark.parametrize("weights", ["frozen", "trained", "lora"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "opt"])
def test_the_budget_is_met_by_less_than_a_unit(architecture, weights, solved):
    solved(architecture, weights)
    model, kinds = everything()
    kept = kept_units(model)
    gone = sum(int((~kept[one.block][one.kind]).sum()) * one.parameters for one in kinds)
    wanted = math.ceil(0.3 * parameters_of(kinds))
    assert wanted <= gone < wanted + min(one.parameters for one in kinds)


@pytest.mark.parametrize("weights", ["frozen", "trained", "lora"])
def test_the_smallest_gates_go(weights, solved):
    solved("llama", weights)
    model, kinds = everything()
    kept, gates = kept_units(model), trained_file()
    for one in kinds:
        sizes, keep = gates.sizes(one), kept[one.block][one.kind]
        if not bool(keep.all()):
            assert float(sizes[~keep].max()) <= float(sizes[keep].min())


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gpt_neox"])
def test_frozen_weights_are_only_scaled(architecture, solved):
    solved(architecture)
    model, kinds = everything()
    weights, gates, kept = solution_weights(model), trained_file(), kept_units(model)
    sinks = {one.sink.name: one for one in kinds}
    for linear in (linear for index in range(model.blocks) for linear in model.linears(index)):
        found, dense = linear.weight(weights[linear.tensor]), model.weights.stored(linear)
        if linear.name in sinks:
            one = sinks[linear.name]
            scales = torch.zeros(linear.shape[1], dtype=torch.float64)
            scales[one.columns] = (gates.scales(one) * kept[one.block][one.kind])[:, None]
            torch.testing.assert_close(found, (dense.double() * scales).float())
        else:
            assert bool(((found == dense) | (found == 0)).all())


def test_frozen_weights_make_up_for_what_goes_where_that_is_asked(solved):
    place = solved(units={"compensation": "weights"})
    model, _ = everything()
    before = solution_weights(model)
    errors = [row["relative_error"] for index in range(3) for row in read_rows(SOLUTION / block_file(index))]
    place.change(**gate_settings())
    place.run("solve")
    after = [row["relative_error"] for index in range(3) for row in read_rows(SOLUTION / block_file(index))]
    assert sum(errors) < sum(after)
    assert any(not torch.equal(before[name], weight) for name, weight in solution_weights(model).items())
    assert len(list((FOLDER / "gates").glob("*.safetensors"))) == 1  # trained once, for both


@TRAINED
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_solution_is_the_trained_model_without_its_units(architecture, weights, solved, monkeypatch):
    seen = {}

    def remember(*arguments):
        seen["model"] = gated_model(*arguments)
        return seen["model"]

    monkeypatch.setattr(gate_training, "gated_model", remember)
    solved(architecture, weights)
    model, _ = everything()
    kept, trained = kept_units(model), seen["model"]
    with torch.no_grad():
        for one, family in zip(trained.units, trained.families, strict=True):
            family.gates.factors[0] = trained_file().scales(one) * kept[one.block][one.kind]
            family.gates.factors[1:] = 1
    net, found = load_model(MODEL), solution_weights(model)
    for name, weight in found.items():
        net.get_parameter(name).data = weight
    tokens = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = trained.net(input_ids=tokens, use_cache=False).logits
        # What is masked out in our solution makes nothing there either: its columns of o and down are zero.
        torch.testing.assert_close(net(input_ids=tokens, use_cache=False).logits, expected, rtol=1e-4, atol=1e-5)
    moved = [
        not torch.equal(weight[weight != 0], linear.weight(model.weights.stored(linear))[weight != 0])
        for index in range(model.blocks)
        for linear in model.linears(index)
        if linear.role in ("attention.q", "attention.qkv")
        for weight in [found[linear.tensor]]
    ]
    assert all(moved)


@pytest.mark.parametrize("weights", ["frozen", "trained", "lora"])
def test_a_training_that_was_killed_goes_on_with_the_same_bytes(weights, workspace, monkeypatch):
    place = workspace("llama", **gate_settings(weights, settings={"steps": 7, "learning_rate": 0.03}))
    monkeypatch.setattr(gate_training, "SAVE_EVERY", 2)
    place.run("extract", "statistics", "solve")
    whole = place.bytes_of("solution")
    (found,) = (FOLDER / "gates").glob("*.safetensors")
    expected = found.read_bytes()
    for file in [*(FOLDER / "gates").iterdir(), *(FOLDER / "scores").glob("*")]:
        file.unlink()
    strength, calls = DGating.strength, []

    def stops(self, step):
        calls.append(step)
        if step == 5:
            raise KeyboardInterrupt
        return strength(self, step)

    monkeypatch.setattr(DGating, "strength", stops)
    assert place.fail("solve")[0] == 130
    assert len(list((FOLDER / "gate_states").glob("*.safetensors"))) == 2
    calls.clear()
    monkeypatch.setattr(DGating, "strength", lambda self, step: calls.append(step) or strength(self, step))
    place.run("solve")
    assert calls[0] == 4
    assert found.read_bytes() == expected
    assert place.bytes_of("solution") == whole
    assert not list((FOLDER / "gate_states").iterdir())


def test_a_corrupt_state_is_passed_over(workspace, monkeypatch):
    place = workspace("llama", **gate_settings(settings={"steps": 7, "learning_rate": 0.03}))
    monkeypatch.setattr(gate_training, "SAVE_EVERY", 2)
    place.run("extract", "statistics", "solve")
    (found,) = (FOLDER / "gates").glob("*.safetensors")
    expected = found.read_bytes()
    for file in (FOLDER / "gates").iterdir():
        file.unlink()
    strength = DGating.strength

    def stops(self, step):
        if step == 5:
            raise KeyboardInterrupt
        return strength(self, step)

    monkeypatch.setattr(DGating, "strength", stops)
    place.fail("solve")
    for state in (FOLDER / "gate_states").glob("*.safetensors"):
        state.write_bytes(state.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(DGating, "strength", strength)
    place.run("solve")
    assert found.read_bytes() == expected


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"depth": 1}, "methods.d_gating.depth: expected at least 2, got 1"),
        ({"steps": 0}, "methods.d_gating.steps: expected at least 1, got 0"),
        ({"batch": 0}, "methods.d_gating.batch: expected at least 1, got 0"),
        ({"learning_rate": 0.0}, "methods.d_gating.learning_rate: expected more than 0, got 0"),
        ({"weight_rate": -1.0}, "methods.d_gating.weight_rate: expected more than 0, got -1"),
        ({"penalty": float("inf")}, "methods.d_gating.penalty: expected more than 0, got inf"),
        ({"seed": 2**63}, "methods.d_gating.seed: expected less than 9223372036854775808, got 9223372036854775808"),
        ({"tolerance": 1.0}, "methods.d_gating.tolerance: expected a fraction in"),
        ({"weights": "melted"}, "methods.d_gating.weights: Input should be 'frozen', 'trained' or 'lora'"),
        ({"speed": 1}, "methods.d_gating: unknown setting 'speed'"),
    ],
)
def test_settings_out_of_range_are_told(settings, told):
    with pytest.raises(ParameterError, match=told.replace("(", r"\(")):
        registry.load("d_gating", settings)


@pytest.mark.parametrize(
    ("settings", "solve", "told"),
    [
        (
            {"batch": 7},
            {},
            "methods.d_gating.batch: expected at most the 5 calibration.sequences that are not held out, got 7",
        ),
        ({}, {"inputs": "pruned", "units": {"choice": "pruned"}}, "solve.units.choice: d_gating chooses by its"),
        ({"weights": "trained"}, {"units": {"compensation": "weights"}}, "expected auto or none, got weights"),
        ({"weights": "trained"}, {"inputs": "pruned", "target": "corrected"}, "solve.target: the dense model's"),
        ({}, {"inputs": "pruned", "target": "corrected"}, "solve.target: the dense model's"),
        ({}, {"sparsity": 0.0, "rules": [{"sparsity": 0.0}]}, "d_gating has nothing to gate"),
        ({}, {"sparsity": 0.9, "rules": [{"roles": ["mlp"], "sparsity": 0.0}]}, "solve.sparsity: 0.9"),
        ({}, {"rules": [{"blocks": [3, 4], "sparsity": 0.0}]}, "solve.rules[0].blocks: the model has 3 blocks: "),
        ({"learning_rate": 1e30}, {}, "not finite"),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_line(settings, solve, told, workspace):
    place = workspace("llama", **gate_settings(settings={"steps": 3, **settings}, **solve))
    place.run("extract", "statistics")
    code, line = place.fail("solve")
    assert code == 2
    assert told in line
    assert not list((FOLDER / "gates").glob("*.safetensors"))  # nothing was trained for it


def test_where_nothing_is_to_go_nothing_is_trained(solved):
    solved(sparsity=0.0)
    model, _ = everything()
    for index in range(model.blocks):
        for name, weight in read_weights(SOLUTION / block_file(index), model.linears(index), model).items():
            assert torch.equal(weight, load_file(MODEL / "model.safetensors")[name])


def test_lora_without_peft_is_told(workspace, monkeypatch):
    place = workspace("llama", **gate_settings("lora"))
    place.run("extract", "statistics")
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    code, line = place.fail("solve")
    assert code == 2
    assert "lora needs peft, which is not installed here: pip install 'secateur[lora]'" in line
    with pytest.raises(ParameterError):
        adapters.check_adapters()


def test_a_block_that_a_rule_protects_is_not_gated(solved):
    solved("llama", "frozen", 0.2, rules=[{"blocks": [0], "sparsity": 0.0}])
    _, kinds = everything()
    assert all(bool(keep.all()) for keep in read_units(SOLUTION / block_file(0)).values())
    assert bool((trained_file().sizes(kinds[0]) == 1).all())
    assert bool((trained_file().sizes(kinds[2]) != 1).any())


def test_the_order_of_windows_comes_from_the_seed(solved):
    place = solved("llama", "frozen", 0.3)
    first = {path.name for path in (FOLDER / "gates").glob("*.safetensors")}
    place.change(**gate_settings(settings={"seed": 1}))
    place.run("solve")
    files = list((FOLDER / "gates").glob("*.safetensors"))
    assert len(first) == 1
    assert len(files) == 2
    assert files[0].read_bytes() != files[1].read_bytes()


def _linears(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4)).double()


@pytest.mark.parametrize("depth", [2, 3])
def test_scaled_inputs_are_gated_columns(depth):
    """The gating library's own parametrization of the same columns gives the same outputs and gradients."""
    ours, theirs, x = _linears(), _linears(), torch.randn(5, 8, dtype=torch.float64)
    gating = gate(theirs, [units(4, columns=["2.weight"])], depth=depth)
    gates = Gates(depth, 4, ours[2].weight)
    scaled_inputs(ours[2], gates)
    values = torch.rand(depth - 1, 4, dtype=torch.float64)
    gates.factors.data, gating.families[0].gates.factors.data = values.clone(), values.clone()
    (ours(x).square().sum()).backward()
    (theirs(x).square().sum()).backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(gates.factors.grad, gating.families[0].gates.factors.grad)
    v = theirs[2].parametrizations.weight.original
    torch.testing.assert_close(ours[2].weight.grad, v.grad)


@pytest.mark.parametrize("depth", [2, 3])
def test_the_penalty_of_balanced_scalars_is_that_of_the_scale(depth):
    """λ c Σ |s|^(2/D), and no less for any other factors of the same s (Theorem 2.2)."""
    gates = Gates(depth + 1, 5, torch.zeros(1, dtype=torch.float64))
    scales = torch.rand(5, dtype=torch.float64) + 0.1
    gates.factors.data = scales.pow(1 / depth).expand(depth, 5).clone()
    one = ScaledUnits(gates, 0.3)
    expected = 0.3 * scales.pow(2 / depth).sum()
    torch.testing.assert_close(one.penalty().detach(), expected)
    torch.testing.assert_close(one.scales(), scales)
    gates.factors.data[0] *= 1.3
    gates.factors.data[1] /= 1.3
    torch.testing.assert_close(one.scales(), scales)
    assert float(one.penalty().detach()) > float(expected)


def test_sizes_of_diverged_gates_are_refused():
    gates = Gates(3, 2, torch.zeros(1))
    gates.factors.data[0, 0] = math.nan
    with pytest.raises(GatingError, match="diverged"):
        ScaledUnits(gates, 1.0).sizes()


def test_scores_do_not_depend_on_the_unit_of_activations(workspace):
    """A thousand times the up projection, a thousandth of down: the model is the same, and so are its gates."""
    place = workspace("llama", **gate_settings())
    place.run("extract", "statistics", "solve")
    _, kinds = everything()
    before = [trained_file().sizes(one) for one in kinds]
    tensors = load_file(MODEL / "model.safetensors")
    for name in tensors:
        tensors[name] = tensors[name] * (1024.0 if "up_proj" in name else 1 / 1024 if "down_proj" in name else 1.0)
    save_file(tensors, MODEL / "model.safetensors", {"format": "pt"})
    facts = {name: value for name, value in read_manifest(MODEL).items() if name != "files"}
    write_manifest(MODEL, facts)
    for file in (FOLDER / "gates").iterdir():
        file.unlink()
    place.run("extract", "statistics", "solve")
    for one, expected in zip(kinds, before, strict=True):
        torch.testing.assert_close(trained_file().sizes(one), expected, rtol=1e-3, atol=1e-3)


def test_settings_are_frozen_and_default_to_those_of_params():
    values = read_yaml(ROOT / "params.yaml")["methods"]["d_gating"]
    assert values == registry.settings_of("d_gating")
    assert replace(DGating(), steps=3).strength(2) == DGating().penalty
