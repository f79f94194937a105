"""The model of experiments/d_gating is the paper's, whatever it saves on the way."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

from stages.gating.gate import gate

MODEL = Path(__file__).parents[2] / "experiments/d_gating/model.py"


def experiment():
    spec = importlib.util.spec_from_file_location("d_gating_model", MODEL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_distinct_tokens_with_counts_give_what_every_token_gives():
    torch.manual_seed(0)
    model = experiment().Classifier(vocabulary=20, width=12, heads=3, classes=4).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    whole = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        whole.in_proj_weight.copy_(torch.cat([one.weight for one in (model.q, model.k, model.v)]))
        whole.in_proj_bias.copy_(torch.cat([one.bias for one in (model.q, model.k, model.v)]))
        whole.out_proj.load_state_dict(model.o.state_dict())
    texts = [torch.randint(20, (length,)) for length in (30, 9, 1)]
    tokens, counts = torch.zeros(3, 20, dtype=torch.int64), torch.zeros(3, 20, dtype=torch.float64)
    expected = []
    for row, text in enumerate(texts):
        distinct, times = text.unique(return_counts=True)
        tokens[row, : len(distinct)], counts[row, : len(distinct)] = distinct, times.double()
        x = model.embedding(text)[None]
        expected.append(model.classify(whole(x, x, x)[0].mean(1)))
    torch.testing.assert_close(model(tokens, counts), torch.cat(expected))


def test_a_head_whose_gate_is_zero_has_no_part_in_the_logits():
    torch.manual_seed(0)
    room = experiment()
    model, tokens, counts = room.Classifier(20, 12, 3, 4), torch.arange(8).view(2, 4), torch.ones(2, 4)
    gating = gate(model, [room.head_groups(3)])
    with torch.no_grad():
        gating.families[0].gates.factors[0, 1] = 0.0
    before = model(tokens, counts)
    (keep,) = gating.collapse()
    assert keep.tolist() == [True, False, True]
    torch.testing.assert_close(model(tokens, counts), before)
    for linear in (model.q, model.k, model.v):
        assert not linear.weight[4:8].any()
    assert not model.o.weight[:, 4:8].any()
