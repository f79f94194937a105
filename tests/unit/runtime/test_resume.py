"""A run that is stopped anywhere goes on, repeats no finished block and gives the same bytes."""

from __future__ import annotations

import pytest

from stages import statistics
from stages.artifacts.manifest import read_json
from stages.artifacts.tensorfile import TensorFile
from stages.solving import walk as solving
from stages.walk import forward
from tests.helpers.killing import Killed, kill_in
from tests.helpers.tiny import DENSE_STAGES


@pytest.mark.parametrize(
    "walk",
    [
        {"inputs": "dense"},
        {"walk": "block", "target": "dense"},
        {"walk": "block", "target": "corrected"},
        {"walk": "ordered", "target": "dense"},
        {},
    ],
    ids=["dense", "block", "block-corrected", "ordered", "ordered-corrected"],
)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_solve_goes_on_from_the_blocks_that_are_finished(walk, after, workspace, monkeypatch, tmp_path):
    settings = {"method": "sparsegpt", **walk}
    w = workspace(solve=settings)
    w.run(*DENSE_STAGES)
    with monkeypatch.context() as patch:
        kill_in(patch, solving, "write_block", after)
        with pytest.raises(Killed):
            w.run("solve")
    assert not (tmp_path / "data/solution").exists()
    w.run("solve")
    cost = read_json(tmp_path / "metrics/cost/solve.json")
    assert (cost["blocks_restored"], cost["blocks_made"]) == (after, 3 - after)
    told = f"solve      {after} of 3 blocks restored from .cache/blocks, {3 - after} made"
    assert [line for line in w.told if "restored" in line] == ([told] if after else [])
    resumed = w.bytes_of("solution")
    for path in (tmp_path / ".cache/blocks").glob("*/*"):
        path.unlink()
    w.run("solve")
    assert read_json(tmp_path / "metrics/cost/solve.json")["blocks_made"] == 3
    assert w.bytes_of("solution") == resumed


@pytest.mark.parametrize(
    ("stage", "module", "function"), [("extract", forward, "advance"), ("statistics", statistics, "collect")]
)
def test_extract_and_statistics_go_on_too(stage, module, function, workspace, monkeypatch):
    w = workspace()
    w.run("extract")
    if stage == "statistics":
        w.run("statistics")
    undisturbed = w.bytes_of("activations" if stage == "extract" else stage)
    for path in (w.folder / ".cache/blocks").glob("*/*"):
        path.unlink()
    with monkeypatch.context() as patch:
        kill_in(patch, module, function, 1)
        with pytest.raises(Killed):
            w.run(stage)
    calls = []
    original = getattr(module, function)

    def count(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, function, count)
    w.run(stage)
    assert len(calls) == (1 if stage == "extract" else 2)
    assert w.bytes_of("activations" if stage == "extract" else stage) == undisturbed


def test_a_rule_for_the_last_block_leaves_the_first_blocks_restored(workspace, tmp_path):
    w = workspace(solve={"method": "sparsegpt"})
    w.run(*DENSE_STAGES, "solve")
    w.change(solve={"method": "sparsegpt", "rules": [{"blocks": [2], "sparsity": 0.7}]})
    w.run("solve")
    cost = read_json(tmp_path / "metrics/cost/solve.json")
    assert (cost["blocks_restored"], cost["blocks_made"]) == (2, 1)


def test_a_corrupt_block_is_solved_again_and_the_others_are_not(workspace, tmp_path):
    w = workspace(solve={"method": "wanda", "inputs": "dense"})
    w.run(*DENSE_STAGES, "solve")
    solution = w.bytes_of("solution")
    victim = min((tmp_path / ".cache/blocks/solve").glob("*.safetensors"))
    assert TensorFile(victim).spans
    victim.unlink()
    victim.write_bytes(b"rubbish")
    w.run("solve")
    cost = read_json(tmp_path / "metrics/cost/solve.json")
    assert (cost["blocks_restored"], cost["blocks_made"]) == (2, 1)
    assert w.bytes_of("solution") == solution
