"""Forwards in steps are the plain forwards, whether they are held or run again."""

from __future__ import annotations

import pytest
import torch

from stages.models.streaming.capture import input_groups, writes_to_residual
from stages.models.streaming.stepwise import Stepwise
from stages.models.streaming.streamed import StreamedModel
from tests.helpers.tiny import ARCHITECTURES, save_tiny

CPU = torch.device("cpu")
NOTHING, TWO_CHUNKS, ALL = 0, 2 * 2 * 12 * (4 * 32 + 64) * 4, 1e9


def opened(folder, architecture, dtype="float32"):
    save_tiny(folder, architecture)
    model = StreamedModel(folder, CPU, dtype)
    states = torch.randn(6, 12, model.width, generator=torch.Generator().manual_seed(0))
    return model, states, lambda chunk: states[2 * chunk : 2 * chunk + 2]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("memory", [NOTHING, TWO_CHUNKS, ALL])
def test_steps_lead_to_the_output_of_the_plain_forward(architecture, memory, tmp_path):
    model, states, read = opened(tmp_path, architecture)
    with model.loaded(1):
        plain = torch.cat([model.run(1, read(chunk)) for chunk in range(3)])
        groups = input_groups(model, 1, states)
        with Stepwise(model, 1, read, 3, groups, writes_to_residual(model, 1, groups), memory) as steps:
            for group in range(len(groups)):
                assert len(list(steps.stops(group))) == 3
            assert torch.equal(torch.cat(list(steps.outputs())), plain)
        assert torch.equal(torch.cat([model.run(1, read(chunk)) for chunk in range(3)]), plain)


@pytest.mark.parametrize("memory", [NOTHING, TWO_CHUNKS, ALL])
def test_what_is_put_between_two_steps_is_what_the_rest_of_the_block_sees(memory, tmp_path):
    model, states, read = opened(tmp_path, "llama")
    down = next(linear for linear in model.linears(1) if linear.role == "mlp.down")
    output = next(linear for linear in model.linears(1) if linear.role == "attention.o")
    with model.loaded(1):
        groups = input_groups(model, 1, states)
        with Stepwise(model, 1, read, 3, groups, writes_to_residual(model, 1, groups), memory) as steps:
            list(steps.stops(1))
            model.weights.put(output, torch.zeros(output.shape))
            seen = torch.cat([stop.stream for stop in steps.stops(3)])
            torch.testing.assert_close(seen, states)
            model.weights.put(down, torch.zeros(down.shape))
            torch.testing.assert_close(torch.cat(list(steps.outputs())), states)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_adders_are_the_linears_whose_answer_is_added_to_the_hidden_states(architecture, dtype, tmp_path):
    model, states, _ = opened(tmp_path, architecture, dtype)
    with model.loaded(1):
        groups = input_groups(model, 1, states)
        found = [
            linears[0].role for linears, adds in zip(groups, writes_to_residual(model, 1, groups), strict=True) if adds
        ]
    normed = architecture == "gemma2"  # it norms what the linears answer before it is added
    assert sorted(found) == ([] if normed else ["attention.o", "mlp.down"])


def test_a_linear_whose_answer_is_normed_first_is_no_adder(tmp_path):
    from transformers import AutoModelForCausalLM, Gemma2Config

    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = StreamedModel(tmp_path, CPU)
    with model.loaded(1):
        groups = input_groups(model, 1, torch.randn(1, 4, 32))
        assert writes_to_residual(model, 1, groups) == [False] * 4


def test_gradients_are_as_they_were_after_a_visit_that_is_left_halfway(tmp_path):
    model, states, read = opened(tmp_path, "llama")
    with torch.enable_grad(), model.loaded(1):
        groups = input_groups(model, 1, states)
        with Stepwise(model, 1, read, 3, groups, [False] * 4, ALL) as steps:
            list(steps.stops(0))
            assert torch.is_grad_enabled()
        assert torch.is_grad_enabled()
