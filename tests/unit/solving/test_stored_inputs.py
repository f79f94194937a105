"""What the attention of a block is computed from: the right states, batches cached as far as there is room."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from stages.solving.linear import attention
from stages.solving.linear.attention import BatchCache
from stages.walk.held_out import fitted_sequences


@pytest.mark.parametrize(("room", "made"), [(0, 9), (16, 7), (40, 5), (48, 3), (1000, 3)])
def test_batches_are_kept_until_the_room_is_full(monkeypatch, room, made):
    """Three batches of 16 bytes each, read three times."""
    monkeypatch.setattr(attention, "CACHE_BYTES", room)
    cache, count = BatchCache(), 0

    def make(batch):
        nonlocal count
        count += 1
        return {"tensors": [torch.full((2,), float(batch), dtype=torch.float32)], "other": (torch.zeros(1).double(),)}

    for _ in range(3):
        for batch in range(3):
            found = cache.get(batch, lambda batch=batch: make(batch))
            assert found["tensors"][0].tolist() == [batch, batch]
    assert count == made
    assert cache.size <= room


@pytest.mark.parametrize("corrected", [False, True])
def test_attention_is_preserved_toward_the_dense_states_only_where_targets_are_corrected(monkeypatch, corrected):
    probe = SimpleNamespace(linears=("q", "k"))
    monkeypatch.setattr(attention, "states_shape", lambda path: (8, 4, 3))
    monkeypatch.setattr(attention, "AttentionProbe", lambda model, index: nullcontext(probe))
    inputs = SimpleNamespace(model=None, index=0, states="own", dense_states="dense")
    with attention.attention_problem(inputs, SimpleNamespace(rows=(2, 2)), torch.zeros(4, 3), 2, corrected) as problem:
        fit, held = problem.fit, problem.held
    assert fit.states == held.states == "own"
    assert fit.dense_states == held.dense_states == ("dense" if corrected else "own")
    assert (fit.first, fit.last, held.first, held.last) == (0, fitted_sequences(8), fitted_sequences(8), 8)
