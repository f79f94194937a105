"""The ordered, corrected walk is what a plain loop over the whole model gives."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.linalg.correction import OutputErrorMoments, corrected_target
from stages.methods import registry
from stages.methods.linear.contract import Budget, LinearProblem
from stages.models.structure import find_blocks, linears_of
from tests.helpers.plain_walk import (
    HELD_OUT,
    INPUT_GROUPS,
    WRITES_TO_RESIDUAL,
    calibration_windows,
    inputs_of,
    pruned_model,
    residual_stream,
    table,
)
from tests.helpers.tiny import DENSE_STAGES

ALONE = ({"roles": ["attention.k", "mlp.up"], "sparsity": 0.500001},)  # the same counts, solved apart from the rest


@pytest.mark.parametrize("architecture", ["llama", "phi"])
@pytest.mark.parametrize("target", ["dense", "corrected"])
@pytest.mark.parametrize(("held_gb", "rules"), [(0, ()), (1, ()), (1, ALONE)])
def test_the_ordered_walk_is_the_plain_one(architecture, target, held_gb, rules, workspace):
    solve = {"method": "wanda", "target": target, "rules": list(rules)}
    w = workspace(architecture, solve=solve, workers={"held_gb": held_gb})
    w.run(*DENSE_STAGES, "solve", "assemble")
    dense = AutoModelForCausalLM.from_pretrained(w.folder / "data/model").eval()
    walked = AutoModelForCausalLM.from_pretrained(w.folder / "data/model").eval()
    ours, tokens = pruned_model(w), calibration_windows(w)
    prefix, blocks = find_blocks(walked)
    for index, block in enumerate(blocks):
        linears = {linear.name.split(".")[-1]: linear for linear in linears_of(block, prefix, index)}
        added = []
        for group in INPUT_GROUPS[architecture]:
            names = [linears[name].name for name in group]
            x = inputs_of(walked, [linears[group[0]]], tokens)[names[0]]
            x0 = inputs_of(dense, [linears[group[0]]], tokens)[names[0]]
            before = torch.cat([walked.get_parameter(f"{name}.weight").detach() for name in names])
            lack = (x0 - x) @ before.T
            if group[0] in WRITES_TO_RESIDUAL:
                ahead, behind = (residual_stream(model, prefix, index, added, tokens) for model in (dense, walked))
                lack = lack + ahead - behind
                added.append(names[0])
            rows = tuple(linears[name].shape[0] for name in group)
            solved = solve_plainly(before, x, lack, rows, target)
            for name, weight in zip(names, solved.split(rows), strict=True):
                found = ours.get_parameter(f"{name}.weight")
                assert float(((weight != 0) == (found != 0)).float().mean()) > 0.999
                torch.testing.assert_close(found, weight, rtol=1e-3, atol=2e-3)
                walked.get_parameter(f"{name}.weight").data = found.data
    assert {row["refits"] for row in table(w).values()} == {target == "corrected"}


def solve_plainly(before, x, lack, rows, target):
    flat = x.reshape(-1, x.shape[-1])
    gram = flat.T @ flat / len(flat)
    if target == "corrected":
        parts = []
        for some in (slice(0, -HELD_OUT), slice(-HELD_OUT, None)):
            xs, lacks = (each[some].reshape(-1, each.shape[-1]) for each in (x, lack))
            parts.append(OutputErrorMoments(xs.T @ xs / len(xs), xs.T @ lacks / len(xs)))
        before, _ = corrected_target(before, *parts, rows, 1.0, (0.1, 1.0))
    problem = LinearProblem(before, gram, flat.mean(0), len(flat), rows)
    return registry.load("wanda")(problem, Budget(0.5, "row")).weight
