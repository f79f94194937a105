"""The streamed model is the real model, whatever the architecture."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.errors import ArchitectureError, ArtifactError
from stages.models.roles import OTHER
from stages.models.streaming.capture import input_groups
from stages.models.streaming.streamed import StreamedModel
from stages.models.structure import find_blocks
from tests.helpers.tiny import ARCHITECTURES, VOCABULARY, save_tiny, tiny_model

EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", ARCHITECTURES)
CPU = torch.device("cpu")


@pytest.fixture
def tokens():
    return torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))


@EVERY_ARCHITECTURE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_one_at_a_time_give_the_real_models_states_and_logits(architecture, dtype, tmp_path, tokens):
    save_tiny(tmp_path, architecture, dtype=dtype)
    real = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = real(tokens, output_hidden_states=True, use_cache=False)
    model = StreamedModel(tmp_path, CPU)
    assert model.dtype == dtype
    states = torch.cat(list(model.embed(tokens)))
    assert torch.equal(states, expected.hidden_states[0])
    for index in range(model.blocks - 1):  # what leaves the last block is normed before it is shown
        with model.loaded(index):
            states = model.run(index, states)
        assert torch.equal(states, expected.hidden_states[index + 1])
    assert torch.equal(model.logits(tokens), expected.logits)


@EVERY_ARCHITECTURE
def test_every_linear_of_a_block_has_a_role_and_an_input(architecture, tmp_path, tokens):
    save_tiny(tmp_path, architecture)
    model = StreamedModel(tmp_path, CPU)
    linears = model.linears(1)
    assert all(linear.role != OTHER for linear in linears)
    with model.loaded(1):
        groups = input_groups(model, 1, torch.randn(2, 12, model.width))
    assert sorted(linear.name for group in groups for linear in group) == sorted(linear.name for linear in linears)
    roles = [{linear.role for linear in group} for group in groups]
    if architecture == "phi":
        assert roles[0] == {"attention.q", "attention.k", "attention.v", "mlp.up"}
    elif architecture == "llama":
        attention = {"attention.q", "attention.k", "attention.v"}
        assert roles == [attention, {"attention.o"}, {"mlp.gate", "mlp.up"}, {"mlp.down"}]


def test_only_the_block_at_hand_and_small_tensors_are_in_memory(tmp_path, tokens):
    save_tiny(tmp_path, "llama")
    model = StreamedModel(tmp_path, CPU)

    def held():
        return {name for name, parameter in model._model.named_parameters() if parameter.device.type != "meta"}

    assert held() == {"model.norm.weight"}
    with model.loaded(1):
        assert all(name.startswith("model.layers.1.") for name in held() - {"model.norm.weight"})
    model.logits(tokens)
    assert held() == {"model.norm.weight"}


def test_replaced_weights_are_used(tmp_path, tokens):
    save_tiny(tmp_path, "gpt2")
    model = StreamedModel(tmp_path, CPU)
    name = "transformer.h.1.mlp.c_proj.weight"
    real = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        real.get_parameter(name).zero_()
        expected = real(tokens, use_cache=False).logits
    zero = {name: torch.zeros_like(real.get_parameter(name))}
    assert torch.equal(model.logits(tokens, lambda index: zero), expected)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(tmp_path):
    save_tiny(tmp_path, "llama")
    model = StreamedModel(tmp_path, CPU)
    del model.checkpoint.files["model.layers.2.mlp.up_proj.weight"]
    with pytest.raises(ArtifactError, match=r"has no tensor model\.layers\.2\.mlp\.up_proj\.weight"), model.loaded(2):
        pass


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"holds no model\.safetensors"):
        StreamedModel(tmp_path, CPU)


def test_a_model_without_a_list_of_blocks_is_refused():
    model = tiny_model("llama")
    model.config.num_hidden_layers = 7
    with pytest.raises(ArchitectureError, match="expected a list of 7 blocks"):
        find_blocks(model)


@pytest.mark.parametrize("architecture", ["llama", "llama_bias", "gpt2"])
def test_a_linear_has_another_bias_while_its_block_is_loaded_and_no_longer(architecture, tmp_path, tokens):
    """A bias that the dense linear lacks is a constant added to its output."""
    real = save_tiny(tmp_path, architecture)
    model = StreamedModel(tmp_path, CPU)
    before = model.logits(tokens)
    linear = next(linear for linear in model.linears(1) if linear.role == "mlp.down")
    had, bias = model.weights.has_bias(linear), torch.randn(model.width)
    module = real.get_submodule(linear.name)
    old = torch.zeros(model.width) if module.bias is None else module.bias
    module.register_forward_hook(lambda module, args, output: output - old + bias)
    with torch.no_grad():
        expected = real(tokens, use_cache=False).logits
    torch.testing.assert_close(
        model.logits(tokens, lambda index: {f"{linear.name}.bias": bias} if index == 1 else {}), expected
    )
    assert model.weights.has_bias(linear) == had
    states = torch.randn(2, 12, model.width)
    with model.loaded(1, {f"{linear.name}.bias": bias}):
        given = model.run(1, states)
    with model.loaded(1):
        model.weights.put_bias(linear, torch.zeros_like(bias))
        model.weights.put_bias(linear, bias)
        assert torch.equal(model.run(1, states), given)
    assert model.weights.has_bias(linear) == had
    assert torch.equal(model.logits(tokens), before)
