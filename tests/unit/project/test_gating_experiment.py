"""experiments/d_gating: its model is the paper's whatever it saves on the way, its table tells what the runs did."""

from __future__ import annotations

import importlib.util

import datasets
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn

from stages.errors import SourceError
from stages.gating.gate import gate
from stages.sources.documents import Document
from tests.helpers.committed import ROOT

FOLDER = ROOT / "experiments/d_gating"


def experiment(name="model"):
    spec = importlib.util.spec_from_file_location(f"d_gating_{name}", FOLDER / f"{name}.py")
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


def test_texts_are_distinct_tokens_and_their_counts():
    tokenizer = Tokenizer(WordLevel({"a": 1, "b": 2, "c": 3, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    texts, of = experiment("texts").pieces(tokenizer, ["c a c", "b"], most=1)
    assert of == [0, 1]
    tokens, counts = experiment("texts").counted(texts, length=4)
    assert tokens.tolist() == [[1, 3, 0, 0], [2, 0, 0, 0]]
    assert counts.tolist() == [[1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_pieces_of_a_text_follow_one_another_and_a_short_last_one_is_left_out():
    tokenizer = Tokenizer(WordLevel({letter: at for at, letter in enumerate("abcdefghijk?")}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(4)
    pieces = experiment("texts").pieces
    texts = ["a b c d e f g h i", "a b", "a b c d e f g h i j k"]
    assert pieces(tokenizer, texts, most=3) == (
        [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]],
        [0, 0, 1, 2, 2, 2],
    )
    assert pieces(tokenizer, texts, most=1) == ([[0, 1, 2, 3], [0, 1], [0, 1, 2, 3]], [0, 1, 2])


def test_labels_stay_apart_or_are_one_topic_against_the_others():
    label_of = experiment("texts").label_of
    assert label_of(Document("", "tech"), {"positive": []}) == "tech"
    assert [label_of(Document("", one), {"positive": ["tech"]}) for one in ("tech", "sports")] == ["in", "out"]


def test_reviews_that_do_not_come_are_told_in_one_line(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    wanted = {"id": "stanfordnlp/imdb", "config": "plain_text", "revision": "main", "train": 2, "test": 2}
    with pytest.raises(SourceError, match=r"^texts\.source: stanfordnlp/imdb did not come .*no route\): .*bbc") as told:
        experiment("texts").imdb({"imdb": wanted, "seed": 0})
    assert "\n" not in str(told.value)


def test_the_table_counts_heads_at_the_last_epoch_and_tells_the_claim():
    figure = experiment("figure")
    base = {"depth": "2", "strength": "0.015", "epochs": "2", "loss": "0.1", "cpu_seconds": "3"}
    norms = {"gated": ["1", "1e-6", "1e-9", "1e-7"], "naive": ["1", "0.5", "0.01", "0.02"]}
    rows = [
        {
            **base, "method": method, "seed": str(seed), "epoch": str(epoch),
            "accuracy": "0.90" if method == "gated" else "0.91",
            **{f"head_{at}": norm if epoch == 2 else "1" for at, norm in enumerate(norms[method])},
        }
        for method in norms for seed in (0, 1) for epoch in (1, 2)
    ]  # fmt: skip
    text = figure.summary([figure.read(row) for row in rows])
    assert "| 0.015 | gated | 2 | 2 | 90.0% (90.0% to 90.0%) | 0.100 (0.100 to 0.100) | 1.0 (1.0 to 1.0) |" in text
    assert "below 1e-06 of the largest head 75% (75% to 75%)" in text
    assert "smallest head 1.0e-02 (1.0e-02 to 1.0e-02) of its largest" in text
    assert "accuracy -1.0 points" in text
