"""Queries and keys come from the model itself: their softmax is the model's own attention matrix."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.errors import ArchitectureError
from stages.models.streaming.attention import AttentionProbe
from stages.models.streaming.observed_attention import observed_attention
from stages.models.streaming.streamed import StreamedModel
from tests.helpers.tiny import CONFIGS, VOCABULARY, save_tiny

CPU = torch.device("cpu")
SEPARATE = ["llama", "llama_bias", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "opt"]
FUSED = ["gpt2", "gpt_neox"]
ROLES = ("attention.q", "attention.k")


@pytest.fixture
def tokens():
    return torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))


def probabilities(asked):
    groups = asked.query.shape[1] // asked.key.shape[1]
    logits = asked.query @ asked.key.repeat_interleave(groups, 1).mT * asked.scaling
    if asked.softcap is not None:
        logits = torch.tanh(logits / asked.softcap) * asked.softcap
    return torch.softmax(logits if asked.mask is None else logits + asked.mask, -1)


@pytest.mark.parametrize("architecture", SEPARATE)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_attention_matrix_is_the_real_models(architecture, index, tmp_path, tokens):
    save_tiny(tmp_path, architecture)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = real(tokens, output_hidden_states=True, output_attentions=True, use_cache=False)
    model = StreamedModel(tmp_path, CPU)
    with AttentionProbe(model, index) as probe:
        weights = {linear: model.weights.current(linear) for linear in probe.linears}
        asked = probe.queries_and_keys(probe.call(expected.hidden_states[index]), weights)
    torch.testing.assert_close(probabilities(asked), expected.attentions[index])


@pytest.mark.parametrize("architecture", SEPARATE)
def test_other_weights_change_it_and_get_a_gradient(architecture, tmp_path, tokens):
    save_tiny(tmp_path, architecture)
    model = StreamedModel(tmp_path, CPU)
    states = torch.cat(list(model.embed(tokens)))
    with AttentionProbe(model, 0) as probe:
        call = probe.call(states)
        own = {linear: model.weights.current(linear) for linear in probe.linears}
        others = {linear: (0.5 * weight).requires_grad_() for linear, weight in own.items()}
        there = probe.queries_and_keys(call, own), probe.queries_and_keys(call, others)
        assert not torch.allclose(probabilities(there[0]), probabilities(there[1]))
        difference = (probabilities(there[0]) - probabilities(there[1])).square().sum()
        gradients = torch.autograd.grad(difference, list(others.values()))
        assert all(gradient.abs().max() > 0 for gradient in gradients)
        assert all(torch.equal(model.weights.current(linear), weight) for linear, weight in own.items())


@pytest.mark.parametrize("architecture", SEPARATE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_a_half_precision_model_is_asked_in_the_dtype_of_the_weights(architecture, dtype, wide, tmp_path, tokens):
    save_tiny(tmp_path, architecture, dtype=dtype)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=dtype).eval()
    with torch.no_grad():
        expected = real(tokens, output_hidden_states=True, output_attentions=True, use_cache=False)
    model = StreamedModel(tmp_path, CPU)
    with AttentionProbe(model, 1) as probe:
        weights = {linear: model.weights.current(linear).to(wide).requires_grad_() for linear in probe.linears}
        asked = probe.queries_and_keys(probe.call(expected.hidden_states[1]), weights)
    assert asked.query.dtype == asked.key.dtype == wide
    found = probabilities(asked)
    torch.testing.assert_close(found, expected.attentions[1].to(wide), rtol=0.05, atol=0.01)
    gradients = torch.autograd.grad(found.square().sum(), list(weights.values()))
    assert all(gradient.dtype == wide and gradient.any() for gradient in gradients)


def test_the_model_attends_as_before_afterwards(tmp_path, tokens):
    save_tiny(tmp_path, "llama")
    model = StreamedModel(tmp_path, CPU)
    before = model.logits(tokens)
    with AttentionProbe(model, 1) as probe:
        probe.call(torch.cat(list(model.embed(tokens))))
    assert torch.equal(model.logits(tokens), before)


@pytest.mark.parametrize("architecture", [*SEPARATE, *FUSED])
def test_a_loaded_block_is_asked_with_its_own_weights_fused_or_not(architecture, tmp_path, tokens):
    save_tiny(tmp_path, architecture)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = real(tokens, output_hidden_states=True, output_attentions=True, use_cache=False)
    model = StreamedModel(tmp_path, CPU)
    first = next(linear for linear in model.linears(1) if linear.role in (*ROLES, "attention.qkv"))
    entered = []
    with model.loaded(1):
        with observed_attention(model, 1) as ask:
            inputs, asked = ask(expected.hidden_states[1])
        model.module(first.name).register_forward_pre_hook(lambda _, args: entered.append(args[0]))
        after = model.run(1, expected.hidden_states[1])
    torch.testing.assert_close(probabilities(asked), expected.attentions[1])
    torch.testing.assert_close(inputs, entered[0])
    torch.testing.assert_close(after, expected.hidden_states[2])


def test_a_sink_in_the_softmax_is_refused(tmp_path, tokens, monkeypatch):
    sizes = CONFIGS["llama"][1] | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
    monkeypatch.setitem(CONFIGS, "sinks", ("GptOssConfig", sizes))
    save_tiny(tmp_path, "sinks")
    model = StreamedModel(tmp_path, CPU)
    states = torch.cat(list(model.embed(tokens)))
    with model.loaded(0), observed_attention(model, 0) as ask, pytest.raises(ArchitectureError, match="adds a sink"):
        ask(states)


@pytest.mark.parametrize("architecture", FUSED)
def test_q_and_k_in_one_linear_are_refused(architecture, tmp_path):
    save_tiny(tmp_path, architecture)
    with pytest.raises(ArchitectureError, match=r"attention\.qkv.*use a layer-wise method"):
        AttentionProbe(StreamedModel(tmp_path, CPU), 0)
