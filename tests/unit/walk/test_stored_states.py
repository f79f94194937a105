"""What walks keep in the block store for a run that is killed: as little as the next block needs, and never less."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.artifacts.linears import LINEARS
from stages.artifacts.places import SOLUTION, block_file
from stages.params import Compute
from stages.runtime.workspace import open_model
from stages.walk.backward import Backward
from stages.walk.pruned import Pruned
from stages.walk.states import BlockInputStates

KEYS = ["first", "second", "third"]


def held(task: str) -> set[Path]:
    return set(Path(".cache/blocks", task).glob("*.safetensors"))


@pytest.fixture
def model(workspace):
    workspace("llama", calibration={"sequences": 2, "length": 8}).run("extract")
    return open_model(Compute(device="cpu"))


@pytest.fixture
def states(model, monkeypatch):
    def record(self, index, source, solutions, target):
        target.write_text(f"block {index} of {source.name}")

    monkeypatch.setattr(BlockInputStates, "_advance", record)
    return BlockInputStates(model[0], 2)


def test_of_the_states_beyond_the_first_pruned_block_only_the_last_are_held(states):
    assert states.states(1, [], KEYS[:1], 1) == states.dense(1)
    last = states.dense(0)
    for index in (1, 2, 3):
        made = states.states(index, [], KEYS[:index], 0)
        assert made.read_text() == f"block {index - 1} of {last.name}"
        assert held("entering") == {made}
        last = made


def test_states_kept_by_an_ordered_walk_are_those_before_and_after_the_block(states):
    kept = list[Path]()
    for index in range(3):
        before = held("entering")
        states.keep(index, KEYS[: index + 1], lambda path, file_format, dtype: path.write_text("states"))
        kept += held("entering") - before
        assert held("entering") == set(kept[-2:])
    states.forget(KEYS)
    assert not held("entering")


def test_of_the_gradients_those_before_and_after_the_block_are_held(model, tmp_path):
    walk = Backward(*model, 2)
    made = list[Path]()
    for index in (2, 1, 0):
        before = held("gradients")
        walk.write(index, tmp_path / f"{index}")
        made += held("gradients") - before
        assert held("gradients") <= set(made)
        assert len(held("gradients")) == 2
    walk.forget()
    assert not held("gradients")


@pytest.mark.parametrize("first", [0, 1, 2])
def test_pruned_weights_are_read_from_whichever_block_comes_first(workspace, first):
    workspace("llama", calibration={"sequences": 2, "length": 8}, solve={"method": "magnitude"}).run(
        "extract", "statistics", "solve"
    )
    model, _ = open_model(Compute(device="cpu"))
    rows = {row["linear"]: row for row in LINEARS.read(SOLUTION / LINEARS.name)}
    pruned = Pruned(model, [SOLUTION / block_file(index) for index in range(3)], rows)
    for index in (first, first, 2 - first):
        assert {linear.tensor for linear in model.linears(index)} <= set(pruned.block(index))
