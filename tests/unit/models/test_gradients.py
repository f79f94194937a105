"""Gradients made block by block, backwards, are the whole model's."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.models.streaming import gradients
from stages.models.streaming.gradients import differentiable, loss_gradient
from stages.models.streaming.streamed import StreamedModel
from tests.helpers.tiny import ARCHITECTURES, VOCABULARY, save_tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_block_by_block_gives_the_whole_models_gradients(architecture, tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "LOGITS_BYTES", 4 * VOCABULARY * 5)
    save_tiny(tmp_path, architecture, dtype=torch.float64)
    tokens = torch.randint(3, VOCABULARY, (12,), generator=torch.Generator().manual_seed(0))
    real = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    expected = real(tokens[None], labels=tokens[None], use_cache=False).loss
    expected.backward()
    model = StreamedModel(tmp_path, CPU)
    states = [next(model.embed(tokens[None]))]
    for index in range(model.blocks):
        with model.loaded(index):
            states.append(model.run(index, states[-1]))
    with model.ended() as logits:
        loss, leaving = loss_gradient(logits, states[-1], tokens)
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for index in reversed(range(model.blocks)):
        with differentiable(model, index) as block:
            leaving, found, _ = block.backward(states[index], leaving)
        for linear in model.linears(index):
            assert linear.tensor in found
        for name, gradient in found.items():
            meant = real.get_parameter(name).grad
            # the loss is computed in float32, and biases of keys have no gradient but rounding
            torch.testing.assert_close(gradient, meant, rtol=1e-5, atol=1e-7)


def test_a_block_keeps_nothing_to_differentiate(tmp_path):
    save_tiny(tmp_path, "llama")
    model = StreamedModel(tmp_path, CPU)
    with differentiable(model, 1) as block:
        block.backward(torch.randn(1, 5, model.width), torch.randn(1, 5, model.width))
    with model.loaded(1):
        assert not model.run(1, torch.randn(1, 5, model.width)).requires_grad
    with torch.enable_grad(), model.ended() as logits:
        assert not logits(torch.randn(1, 5, model.width)).requires_grad
