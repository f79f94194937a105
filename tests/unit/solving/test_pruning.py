"""extract, statistics, solve and assemble on tiny models: what comes out is what was asked for."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.artifacts.manifest import read_json
from stages.artifacts.packing import unpack
from stages.linalg.gram import GramSum
from stages.linalg.masks import satisfies_groups
from stages.methods import registry
from stages.methods.linear.contract import Budget, LinearProblem
from stages.models.structure import find_blocks, linears_of
from tests.helpers.plain_walk import calibration_windows, inputs_of, pruned_model, table
from tests.helpers.tiny import ARCHITECTURES, DENSE_STAGES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_gives_a_checkpoint_that_loads_with_exact_zeros(architecture, workspace):
    w = workspace(architecture, solve={"method": "sparsegpt", "pattern": "2:4"})
    w.run(*DENSE_STAGES, "solve", "assemble")
    model, rows = pruned_model(w), table(w)
    prefix, blocks = find_blocks(model)
    linears = [linear for i, block in enumerate(blocks) for linear in linears_of(block, prefix, i)]
    assert sorted(rows) == sorted(linear.name for linear in linears)
    for linear in linears:
        weight = linear.weight(model.get_parameter(linear.tensor))
        assert int((weight != 0).sum()) == rows[linear.name]["kept"] == weight.numel() // 2
        assert satisfies_groups(weight != 0, 2, 4)
    manifest = read_json(w.folder / "data/pruned/pruning_manifest.json")
    assert manifest["sparsity"] == 0.5
    assert manifest["reloaded"]["max_logit_difference"] < 1e-5


@pytest.mark.parametrize("method", registry.names("linear"))
@pytest.mark.parametrize("inputs", ["dense", "pruned"])
def test_the_stage_gives_what_the_method_gives_block_by_block(method, inputs, workspace):
    """The brute-force walk: the whole model in memory, plain hooks, blocks replaced one after another.

    Sums in float64, so that no near-tie in a mask falls the other way for the last bit of a sum.
    """
    solve = {"method": method, "inputs": inputs, "walk": "block", "target": "dense"}
    w = workspace(solve=solve, statistics={"dtype": "float64"})
    w.run(*DENSE_STAGES, "solve", "assemble")
    dense = AutoModelForCausalLM.from_pretrained(w.folder / "data/model").eval()
    ours, walked = pruned_model(w), AutoModelForCausalLM.from_pretrained(w.folder / "data/model").eval()
    tokens = calibration_windows(w)
    prefix, blocks = find_blocks(walked)
    for index, block in enumerate(blocks):
        seen = inputs_of(dense if inputs == "dense" else walked, linears_of(block, prefix, index), tokens)
        for linear in linears_of(block, prefix, index):
            total = GramSum.zeros(linear.shape[1], torch.float64, torch.device("cpu"))
            total.add(seen[linear.name])
            weight = walked.get_parameter(linear.tensor)
            problem = LinearProblem(
                weight.data.double(), total.mean_gram(), total.mean(), total.tokens, (linear.shape[0],)
            )
            solver = registry.load(method)
            weight.data = solver(problem, Budget(0.5, solver.scopes[0])).weight.float()
        for linear in linears_of(block, prefix, index):
            expected, found = walked.get_parameter(linear.tensor), ours.get_parameter(linear.tensor)
            assert float(((expected != 0) == (found != 0)).float().mean()) > 0.999
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


def test_masks_on_disk_are_the_zeros_of_the_checkpoint(workspace):
    w = workspace("gpt2", solve={"method": "wanda"})
    w.run(*DENSE_STAGES, "solve", "assemble")
    from stages.artifacts.tensorfile import TensorFile

    file = TensorFile(w.folder / "data/pruned/masks.safetensors")
    shapes, state = json.loads(file.metadata["shapes"]), load_file(w.folder / "data/pruned/model.safetensors")
    for name, shape in shapes.items():
        keep = unpack(file.read([name])[name], tuple(shape))
        assert torch.equal(keep, state[name].T != 0)  # GPT-2 stores its linears transposed


@pytest.mark.parametrize("sparsity", [0.0, 1.0])
@pytest.mark.parametrize("method", registry.names("linear"))
def test_all_and_nothing_are_exact(method, sparsity, workspace):
    w = workspace(solve={"method": method, "sparsity": sparsity})
    w.run(*DENSE_STAGES, "solve", "assemble")
    before = load_file(w.folder / "data/model/model.safetensors")
    after = load_file(w.folder / "data/pruned/model.safetensors")
    for name, row in table(w).items():
        assert row["sparsity"] == sparsity
        tensor = f"{name}.weight"
        assert torch.equal(after[tensor], before[tensor] if sparsity == 0 else torch.zeros_like(before[tensor]))
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])


def test_rules_decide_by_role_and_block_and_the_first_match_wins(workspace):
    rules = [
        {"roles": ["attention.o"], "blocks": [1], "sparsity": 0.0},
        {"roles": ["attention"], "method": "wanda", "settings": {"activation_power": 0.5}, "sparsity": 0.25},
        {"blocks": [-1], "pattern": "1:4"},
    ]
    w = workspace(solve={"method": "sparsegpt", "rules": rules})
    w.run(*DENSE_STAGES, "solve", "assemble")
    rows = table(w)
    found = {name: (row["method"], row["sparsity"], row["pattern"]) for name, row in rows.items()}
    assert found["model.layers.1.self_attn.o_proj"] == ("sparsegpt", 0.0, "unstructured")
    assert found["model.layers.0.self_attn.o_proj"] == ("wanda", 0.25, "unstructured")
    assert found["model.layers.2.self_attn.q_proj"] == ("wanda", 0.25, "unstructured")
    assert found["model.layers.2.mlp.up_proj"] == ("sparsegpt", 0.75, "1:4")
    assert found["model.layers.0.mlp.up_proj"] == ("sparsegpt", 0.5, "unstructured")


def test_the_whole_model_is_ranked_together(workspace):
    w = workspace(solve={"method": "magnitude", "scope": "model", "sparsity": 0.6})
    w.run(*DENSE_STAGES, "solve", "assemble")
    rows = table(w)
    total = sum(row["weights"] for row in rows.values())
    assert sum(row["kept"] for row in rows.values()) == total - int(0.6 * total + 0.5)
    before = load_file(w.folder / "data/model/model.safetensors")
    after = load_file(w.folder / "data/pruned/model.safetensors")
    names = [f"{name}.weight" for name in rows]
    kept = torch.cat([before[name][after[name] != 0].abs() for name in names])
    removed = torch.cat([before[name][after[name] == 0].abs() for name in names])
    assert kept.min() >= removed.max()


def test_blocks_that_stay_dense_leave_the_inputs_of_the_next_as_stored(workspace):
    """Leading dense blocks must not cost a walk, nor change a bit of what follows."""
    walk = {"walk": "block", "target": "dense"}
    w = workspace(solve={"method": "sparsegpt", **walk, "rules": [{"blocks": "0-1", "sparsity": 0}]})
    w.run(*DENSE_STAGES, "solve")
    pruned = w.bytes_of("solution")["block_002.safetensors"]
    w.change(solve={"method": "sparsegpt", "inputs": "dense"})
    w.run("solve")
    assert w.bytes_of("solution")["block_002.safetensors"] == pruned


@pytest.mark.parametrize("file_format", ["safetensors", "parquet"])
def test_both_formats_of_activations_lead_to_the_same_solution(file_format, workspace):
    w = workspace(extract={"format": file_format}, solve={"method": "sparsegpt"})
    w.run(*DENSE_STAGES, "solve")
    rows = table(w)
    w.change(solve={"method": "sparsegpt"})
    w.run(*DENSE_STAGES, "solve")
    assert table(w) == rows


def test_bfloat16_checkpoints_stay_bfloat16(tmp_path, workspace):
    from stages.artifacts.manifest import write_manifest
    from tests.helpers.tiny import tiny_model

    w = workspace(solve={"method": "sparsegpt"})
    tiny_model("llama", torch.bfloat16).save_pretrained(tmp_path / "data/model")
    write_manifest(tmp_path / "data/model", {"source": {}})
    w.run(*DENSE_STAGES, "solve", "assemble")
    state = load_file(tmp_path / "data/pruned/model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    for name, row in table(w).items():
        assert int((state[f"{name}.weight"] == 0).sum()) >= row["weights"] - row["kept"]


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_refits_lower_the_error_of_every_mask_and_leave_the_mask(method, workspace):
    errors, masks = {}, {}
    w = workspace(solve={"method": method, "inputs": "dense"})
    w.run(*DENSE_STAGES)
    for refit in ("none", "cg", "exact"):
        steps = {"refit_steps": 60} if refit == "cg" else {}
        w.change(solve={"method": method, "inputs": "dense", "refit": refit, **steps})
        w.run("solve", "assemble")
        rows = table(w)
        errors[refit] = [row["relative_error"] for row in rows.values()]
        masks[refit] = w.bytes_of("pruned")["masks.safetensors"]
        assert {row["refit"] for row in rows.values()} == {refit}
    assert masks["none"] == masks["cg"] == masks["exact"]
    assert all(cg < plain for cg, plain in zip(errors["cg"], errors["none"], strict=True))
    assert errors["cg"] == pytest.approx(errors["exact"], rel=1e-3)


def test_a_rule_may_refit_by_itself(workspace):
    rules = [{"roles": ["mlp"], "refit": "cg"}]
    w = workspace(solve={"method": "wanda", "rules": rules})
    w.run(*DENSE_STAGES, "solve", "assemble")
    for row in table(w).values():
        in_mlp = row["role"].startswith("mlp")
        assert (row["refit"], row["refits"]) == (("cg", True) if in_mlp else ("none", False))
        assert row["correction"] is None or in_mlp


def test_a_group_size_that_does_not_divide_the_inputs_is_refused_whatever_it_keeps(workspace):
    w = workspace(solve={"method": "wanda", "pattern": "2:5", "sparsity": None})  # 2 divides 32, 5 does not
    w.run("extract", "statistics")
    code, error = w.fail("solve")
    assert code == 2
    assert "2:5 does not divide the 32 inputs of model.layers.0." in error
