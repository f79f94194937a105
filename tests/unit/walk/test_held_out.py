"""Held-out sequences are never fitted to, however calibration is cut into chunks or batches."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from stages.artifacts.activations import writer_of
from stages.methods.linear.contract import LinearProblem
from stages.models.streaming.attention import AttentionProbe, query_and_key
from stages.models.streaming.streamed import StreamedModel
from stages.solving.linear.attention import attention_problem
from stages.solving.plan import BlockInputs
from stages.walk.held_out import HELD_OUT, fitted_sequences, split_chunk
from stages.walk.ordered import OrderedBlockWalk, Stream
from stages.walk.statistics import collect
from tests.helpers.tiny import save_tiny

SEQUENCES = 17
HELD = 2  # of 17, one in eight
EVERY_CHUNK = pytest.mark.parametrize("chunk", [1, 4, 5, 16, 17, 32])


@pytest.mark.parametrize("sequences", range(2, 4 * HELD_OUT + 2))
def test_the_chunks_together_fit_to_the_first_sequences_and_hold_out_the_last(sequences):
    fitted = fitted_sequences(sequences)
    assert 1 <= sequences - fitted == max(1, sequences // HELD_OUT)
    for chunk in range(1, sequences + 2):
        starts = range(0, sequences, chunk)
        splits = [split_chunk(start, min(start + chunk, sequences), sequences) for start in starts]
        which = chain.from_iterable([True] * fit + [False] * held for fit, held in splits)
        assert list(which) == [place < fitted for place in range(sequences)]


@pytest.fixture
def opened(tmp_path):
    """Opens the same model, every time anew: one that runs has its block in memory."""
    save_tiny(tmp_path / "model", "llama")
    return lambda: StreamedModel(tmp_path / "model", torch.device("cpu"), "float32")


@pytest.fixture
def states_file(tmp_path):
    """Writes hidden states to a file of this name and gives its path."""

    def write(name, states):
        path = tmp_path / f"{name}.safetensors"
        with writer_of(path, "safetensors", tuple(states.shape), torch.float32) as writer:
            writer.append(states)
        return path

    return write


def random_states(seed):
    return torch.randn(SEQUENCES, 6, 32, generator=torch.Generator().manual_seed(seed))


@EVERY_CHUNK
def test_corrections_are_fitted_to_the_fitted_sequences_alone(chunk, opened, states_file):
    states = random_states(0)
    pruned, dense = states_file("pruned", states), states_file("dense", random_states(1))
    parts = states_file("fitted", states[:-HELD]), states_file("held", states[-HELD:])
    fitted, held = ([one.gram for one in collect(opened(), 1, part, 4, torch.float64)] for part in parts)
    with OrderedBlockWalk(1, Stream(opened(), pruned), Stream(opened(), dense), chunk, torch.float64, 1e9) as visit:
        found = [statistics.output_errors for statistics in visit.statistics()]
    for output_errors, *expected in zip(found, fitted, held, strict=True):
        torch.testing.assert_close([one.gram for one in output_errors], expected, rtol=1e-5, atol=1e-7)


@EVERY_CHUNK
def test_attention_is_fitted_to_the_fitted_sequences_alone(chunk, opened, states_file):
    states, model = random_states(0), opened()
    path = states_file("states", states)
    linears = query_and_key(model, 1)
    dense = torch.cat([model.weights.stored(linear) for linear in linears])
    rows, width = tuple(linear.shape[0] for linear in linears), dense.shape[1]
    linear = LinearProblem(dense, torch.eye(width), torch.zeros(width), 1, rows)
    inputs = BlockInputs(model, 1, path, path)
    with attention_problem(inputs, linear, dense, chunk, False) as problem, AttentionProbe(opened(), 1) as probe:
        weights = dict(zip(probe.linears, dense.split(rows), strict=True))
        for some, own in ((problem.fit, states[:-HELD]), (problem.held, states[-HELD:])):
            queries = torch.cat([some.dense(batch).query for batch in range(some.batches)])
            torch.testing.assert_close(queries, probe.queries_and_keys(probe.call(own), weights).query)
