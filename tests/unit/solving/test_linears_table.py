"""The table of linears tells what the stored weights are: counts, sparsity and errors, recomputed."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.linears import LINEARS, linear_row
from stages.artifacts.manifest import read_manifest
from stages.artifacts.places import SOLUTION, STATISTICS, TEXTS, block_file
from stages.artifacts.solution import read_biases
from stages.artifacts.tokens import read_tokens, sample_windows
from stages.params import Compute
from stages.runtime.workspace import open_model
from stages.walk.pruned import read_pruned
from stages.walk.statistics import read_statistics

FACTS = {"method": "m", "pattern": "units", "scope": "units", "relative_error": 0.5, "refits": False}


def solved():
    """Every linear's row, mask, solved and dense weight, and how far its bias moved, by block."""
    model, _ = open_model(Compute(device="cpu"))
    rows = {row["linear"]: row for row in LINEARS.read(SOLUTION / LINEARS.name)}
    for index in range(model.blocks):
        path, linears = SOLUTION / block_file(index), model.linears(index)
        biases = read_biases(path, [linear.name for linear in linears])
        for linear, keep, weight in read_pruned(path, linears, model):
            shift = torch.zeros(linear.shape[0])
            if f"{linear.name}.bias" in biases:
                shift = biases[f"{linear.name}.bias"] - model.weights.stored_bias(linear)
            yield index, rows[linear.name], keep, linear.weight(weight), model.weights.stored(linear), shift


def relative_error(weight, dense, shift, gram, mean):
    """E‖(W - W₀) x + s‖² / E‖W₀ x‖², from E x xᵀ and E x."""
    away, gram, mean, shift = (weight - dense).double(), gram.double(), mean.double(), shift.double()
    lost = torch.einsum("ij,jk,ik->", away, gram, away) + 2 * shift @ away @ mean + shift @ shift
    return float(lost / torch.einsum("ij,jk,ik->", dense.double(), gram, dense.double()))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("method", ["wanda", "sparsegpt", "wanda_units", "obs_units", "flap"])
def test_errors_are_those_of_the_stored_weights_on_the_stored_statistics(architecture, method, workspace):
    place = workspace(architecture, solve={"method": method, "inputs": "dense", "sparsity": 0.4})
    place.run("extract", "statistics", "solve")
    errors = list[float]()
    for index, row, keep, weight, dense, shift in solved():
        assert (row["weights"], row["kept"]) == (keep.numel(), int(keep.sum()))
        assert row["sparsity"] == pytest.approx(1 - float(keep.double().mean()))
        if row["pattern"] == "units" and row["role"] not in ("attention.o", "mlp.down"):
            assert row["relative_error"] == 0.0  # what reads the removed rows is removed with them
            continue
        statistics = read_statistics(STATISTICS / block_file(index), torch.device("cpu"))
        (one,) = (one for one in statistics if row["linear"] in one.linears)
        errors.append(relative_error(weight, dense, shift, one.gram, one.mean))
        assert row["relative_error"] == pytest.approx(errors[-1], rel=1e-4, abs=1e-9)
    assert max(errors) > 1e-3


@pytest.mark.parametrize("method", ["wanda", "admm"])
def test_errors_are_those_on_the_pruned_models_own_inputs(method, workspace):
    """In the ordered walk the inputs of every linear are those that the finished checkpoint gives it."""
    place = workspace("llama", solve={"method": method, "target": "corrected"})
    place.run("extract", "statistics", "solve", "assemble")
    windows = sample_windows(read_tokens(TEXTS, "calibration", read_manifest(TEXTS)), 6, 16, 0)
    model, inputs = AutoModelForCausalLM.from_pretrained("data/pruned").eval(), dict[str, torch.Tensor]()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, args, name=name: inputs.update({name: args[0].flatten(0, 1)}))
    with torch.no_grad():
        model(windows, use_cache=False)
    for _, row, _, weight, dense, shift in solved():
        x = inputs[row["linear"]]
        expected = relative_error(weight, dense, shift, x.T @ x / len(x), x.mean(0))
        assert row["relative_error"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("solve", "answers"),
    [
        ({"inputs": "dense"}, {False, True}),
        ({"inputs": "dense", "units": {"compensation": "none"}}, {False}),
        ({"target": "corrected", "units": {"corrected": "all"}}, {False, True}),
    ],
    ids=["compensated", "masked", "corrected"],
)
def test_a_row_says_whether_kept_weights_of_the_linear_changed(solve, answers, workspace):
    place = workspace("llama", solve={"method": "newton", "sparsity": 0.4, **solve})
    place.run("extract", "statistics", "solve")
    changed = set[bool]()
    for index, row, keep, weight, dense, _ in solved():
        if index:  # what enters the first block is the dense model's, whatever is to be corrected
            changed.add(not torch.equal(weight[keep], dense[keep]))
            assert row["refits"] == (not torch.equal(weight[keep], dense[keep])), row["linear"]
    assert changed == answers


def test_a_row_computes_its_sparsity():
    assert linear_row("a", 0, "mlp.up", weights=8, kept=6, **FACTS)["sparsity"] == 0.25
    assert linear_row("a", 0, "shortcut", weights=0, kept=9, **FACTS)["sparsity"] == 0.0


def test_a_target_that_is_not_corrected_has_no_strength_and_no_ridge():
    row = linear_row("a", 0, "mlp.up", weights=8, kept=6, **FACTS)
    assert (row["correction"], row["correction_ridge"]) == (None, None)
    row = linear_row("a", 0, "mlp.up", weights=8, kept=6, correction=0.5, correction_ridge=0.1, **FACTS)
    assert (row["correction"], row["correction_ridge"]) == (0.5, 0.1)
