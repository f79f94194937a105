"""Perplexity: which tokens count, what they come to, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from stages.errors import NotFiniteError, ParameterError
from stages.measuring.quality import perplexity as module
from stages.measuring.quality.perplexity import perplexity
from stages.measuring.quality.protocol import perplexity_in_words
from stages.measuring.quality.windows import windows_of
from stages.params.evaluating import Perplexity
from tests.helpers.tiny import VOCABULARY, tiny_model

BOS = 0
PROTOCOLS = [
    Perplexity(window=16, stride=16),
    Perplexity(window=16, stride=5),
    Perplexity(window=16, stride=1, windows=4),
    Perplexity(window=16, stride=16, bos=True),
    Perplexity(window=16, stride=7, bos=True),
    Perplexity(window=16, stride=16, windows=3),
]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


def text(length):
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)


@torch.no_grad()
def plain(model, tokens, protocol):
    """exp of the mean negative log likelihood, token by token in float64; also how many tokens."""
    seen, losses, start, windows = set(), [], 0, 0
    while start + protocol.window <= len(tokens) and windows != protocol.windows:
        prefix = [BOS] if protocol.bos else []
        ids = prefix + tokens[start : start + protocol.window].tolist()
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        new = protocol.window if start == 0 else protocol.stride
        for place in range(start + protocol.window - new, start + protocol.window):
            at = place - start + len(prefix)
            if at > 0 and place not in seen:
                seen.add(place)
                losses.append(-float(logits[at - 1, ids[at]]))
        start, windows = start + protocol.stride, windows + 1
    return math.exp(sum(losses) / len(losses)), len(losses), windows


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_perplexity_is_that_of_the_plain_sum_over_tokens(model, protocol):
    tokens = text(16 * 6 + 3)
    found = perplexity(model, tokens, windows_of(protocol, len(tokens), BOS), chunk=3)
    value, count, windows = plain(model, tokens, protocol)
    assert found["value"] == pytest.approx(value, rel=1e-5)
    assert (found["tokens"], found["windows"]) == (count, windows)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_every_token_is_scored_at_most_once_and_all_windows_are_whole(protocol):
    scored = [
        place
        for window in windows_of(protocol, 100, BOS)
        for place in range(window.stop - window.scored, window.stop)
        if window.stop <= 100 and window.stop - window.start == protocol.window
    ]
    assert len(scored) == len(set(scored)) > 0
    assert (0 in scored) == protocol.bos


def test_side_by_side_windows_score_all_but_their_first_token():
    windows = windows_of(Perplexity(window=512, stride=512, windows=40), 300_000)
    assert sum(window.scored for window in windows) == 40 * 511


def test_windows_processed_together_do_not_change_the_value(model, monkeypatch):
    tokens = text(200)
    windows = windows_of(Perplexity(window=16, stride=16), len(tokens))
    alone = perplexity(model, tokens, windows, chunk=1)["value"]
    assert perplexity(model, tokens, windows, chunk=8)["value"] == pytest.approx(alone, rel=1e-6)
    sizes = []
    note = model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    monkeypatch.setattr(module, "LOGITS_BYTES", 2 * 16 * VOCABULARY * 4)
    perplexity(model, tokens, windows, chunk=8)
    note.remove()
    assert max(sizes) == 2


def test_a_text_too_short_is_refused_with_the_windows_it_has():
    with pytest.raises(ParameterError, match=r"windows: the evaluation text has 100 tokens, which make 6 whole"):
        windows_of(Perplexity(window=16, stride=16, windows=7), 100)
    with pytest.raises(ParameterError, match=r"10 tokens, which make 0 whole windows"):
        windows_of(Perplexity(window=16, stride=16), 10)


def test_bos_is_refused_where_the_tokenizer_has_none():
    with pytest.raises(ParameterError, match=r"evaluate\.perplexity\.bos: .*set it to false"):
        windows_of(Perplexity(window=16, stride=16, bos=True), 100, None)


def test_a_stride_that_skips_text_is_refused():
    with pytest.raises(ValueError, match="skips text"):
        Perplexity(window=16, stride=17)


def test_logits_that_are_not_finite_name_the_window():
    broken = tiny_model("llama")
    tokens = text(64)
    special = 2
    tokens[40] = special
    with torch.no_grad():
        broken.get_input_embeddings().weight[special] = float("nan")
        broken.lm_head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 32))
    with pytest.raises(NotFiniteError, match=r"window 2 \(tokens 32 to 47 "):
        perplexity(broken, tokens, windows_of(Perplexity(window=16, stride=16), 64), chunk=2)


@pytest.mark.parametrize(
    ("text", "protocol"),
    [
        ({"join": " "}, {}),
        ({"replace": {"<unk>": "unk"}}, {}),
        ({"name": "another"}, {}),
        ({"sha256": "1" * 64}, {}),
        ({}, {"bos": True}),
        ({}, {"stride": 5}),
        ({}, {"window": 8, "stride": 8}),
    ],
)
def test_protocols_that_differ_read_differently(text, protocol):
    plain = {"name": "a text", "join": "", "sha256": "0" * 64, "replace": {}}
    measured = {"tokens": 15, "windows": 1}
    known = perplexity_in_words(Perplexity(window=16, stride=16), plain, measured, "torch.float32")
    changed = Perplexity(**{"window": 16, "stride": 16, **protocol})
    assert perplexity_in_words(changed, plain | text, measured, "torch.float32") != known


def test_what_joins_the_texts_is_told_as_it_is_written():
    text = {"name": "a text", "join": "—", "sha256": "0" * 64}
    told = perplexity_in_words(Perplexity(), text, {"tokens": 15, "windows": 1}, "torch.float32")
    assert 'joined by "—"' in told
