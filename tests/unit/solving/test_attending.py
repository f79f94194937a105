"""Methods of the attention matrix in the pipeline: the right states, the right weights, clear refusals."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.linears import LINEARS
from stages.models.roles import QUERY
from tests.helpers.plain_walk import calibration_windows

BEFORE = ("extract", "statistics")
TOGETHER = ["attention.q", "attention.k"]


def rule(method, roles=TOGETHER, **settings):
    return {"roles": roles, "method": method, "settings": {"batch": 2, "steps": 12} | settings}


def attentions(folder, tokens):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(tokens, output_attentions=True, use_cache=False).attentions


def relative(found, dense):
    return [float((a - b).square().sum() / b.square().sum()) for a, b in zip(found, dense, strict=True)]


@pytest.mark.parametrize("architecture", ["llama", "llama_bias", "mistral", "qwen3", "gemma2", "phi", "opt"])
@pytest.mark.parametrize("inputs", ["dense", "pruned"])
@pytest.mark.parametrize("method", ["attention_gd", "attention_iht"])
def test_q_and_k_by_it_and_the_rest_by_another(architecture, inputs, method, workspace):
    w = workspace(architecture, solve={"method": "wanda", "inputs": inputs, "rules": [rule(method)]})
    w.run(*BEFORE, "solve", "assemble")
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    assert {row["method"] for row in rows if row["role"] in TOGETHER} == {method}
    assert {row["method"] for row in rows if row["role"] not in TOGETHER} == {"wanda"}
    assert all(row["kept"] == row["weights"] // 2 for row in rows)
    assert all(row["refits"] == (method == "attention_iht") for row in rows if row["role"] in TOGETHER)


@pytest.mark.parametrize("walk", ["block", "ordered"])
def test_it_saves_the_attention_matrices_of_the_dense_model(walk, workspace):
    """On the calibration sequences, through the whole pruned model, in blocks where others are pruned before."""
    others = {"roles": ["mlp", "attention.v", "attention.o"], "sparsity": 0.3}
    plain = {"roles": TOGETHER, "method": "magnitude", "settings": {}}
    w, errors = workspace(calibration={"sequences": 8}), []
    w.run(*BEFORE)
    for first in (plain, rule("attention_iht", start="magnitude", steps=60, rate=0.05)):
        solve = {"method": "wanda", "walk": walk, "target": "corrected", "rules": [first, others]}
        w.change(solve=solve, calibration={"sequences": 8})
        w.run("solve", "assemble")
        tokens = calibration_windows(w)
        dense, pruned = attentions(w.folder / "data/model", tokens), attentions(w.folder / "data/pruned", tokens)
        errors.append(relative(pruned, dense))
    assert sum(errors[1]) < sum(errors[0])


def test_only_q_is_refused(workspace):
    w = workspace(solve={"method": "wanda", "rules": [rule("attention_iht", [QUERY])]})
    w.run(*BEFORE)
    code, error = w.fail("solve")
    assert code == 2
    assert "attention_iht prunes attention.q and attention.k together, got attention.q of block 0" in error


def test_other_linears_are_refused(workspace):
    w = workspace(solve={"method": "attention_gd"})
    w.run(*BEFORE)
    code, error = w.fail("solve")
    assert code == 2
    assert "give it to both in one rule" in error


def test_q_and_k_in_one_linear_are_refused(workspace):
    w = workspace("gpt2", solve={"method": "wanda", "rules": [rule("attention_iht", ["attention.qkv"])]})
    w.run(*BEFORE)
    code, error = w.fail("solve")
    assert code == 2
    assert "got attention.qkv of block 0" in error


def test_one_sequence_is_too_few(workspace):
    w = workspace(solve={"method": "wanda", "rules": [rule("attention_iht")]}, calibration={"sequences": 1})
    w.run(*BEFORE)
    code, error = w.fail("solve")
    assert code == 2
    assert "calibration.sequences: corrections hold some out: expected at least 2, got 1" in error


def test_a_changed_setting_of_the_rule_solves_again_and_the_old_blocks_are_found(workspace):
    w = workspace(solve={"method": "wanda", "rules": [rule("attention_iht")]})
    w.run(*BEFORE, "solve")
    first = w.bytes_of("solution")
    w.change(solve={"method": "wanda", "rules": [rule("attention_iht", rate=0.1)]})
    w.run("solve")
    assert w.bytes_of("solution") != first
    w.change(solve={"method": "wanda", "rules": [rule("attention_iht")]})
    w.run("solve")
    assert w.bytes_of("solution") == first
