"""Statistics of the walk are those that plain hooks on the whole model see."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.tensorfile import read_tensors
from stages.errors import NotFiniteError
from stages.models.streaming.streamed import StreamedModel
from stages.walk.forward import advance, write_embeddings
from stages.walk.statistics import InputStatistics, collect, read_statistics, write_statistics
from tests.helpers.tiny import VOCABULARY, save_tiny

CPU = torch.device("cpu")


def walk_to(model, index, tokens, folder, file_format="safetensors"):
    paths = [folder / f"{i}.{file_format}" for i in range(index + 1)]
    write_embeddings(model, tokens, paths[0], file_format, model.dtype)
    for i in range(index):
        advance(model, i, paths[i], paths[i + 1], 2, file_format, model.dtype)
    return paths[index]


def inputs_by_plain_hooks(folder, tokens, names):
    real, seen = AutoModelForCausalLM.from_pretrained(folder).eval(), {}
    for name in names:

        def note(module, args, name=name):
            seen[name] = args[0].reshape(-1, args[0].shape[-1])

        real.get_submodule(name).register_forward_pre_hook(note)
    with torch.no_grad():
        real(tokens, use_cache=False)
    return seen


@pytest.mark.parametrize("architecture", ["llama", "phi", "gpt2", "opt"])
@pytest.mark.parametrize("file_format", ["safetensors", "parquet"])
def test_collected_statistics_are_those_of_the_whole_model(architecture, file_format, tmp_path):
    save_tiny(tmp_path, architecture)
    tokens = torch.randint(3, VOCABULARY, (5, 12), generator=torch.Generator().manual_seed(0))
    model = StreamedModel(tmp_path, CPU)
    states = walk_to(model, 1, tokens, tmp_path, file_format)
    statistics = collect(model, 1, states, 2, torch.float64)
    names = [linear.name for linear in model.linears(1)]
    seen = inputs_by_plain_hooks(tmp_path, tokens, names)
    assert sorted(name for one in statistics for name in one.linears) == sorted(names)
    for one in statistics:
        for name in one.linears:
            x = seen[name].double()
            torch.testing.assert_close(one.gram, x.T @ x / len(x), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(one.mean, x.mean(0), rtol=1e-5, atol=1e-6)
            assert one.tokens == 60


def test_hidden_states_that_are_not_finite_name_the_block(tmp_path):
    save_tiny(tmp_path, "llama")
    model = StreamedModel(tmp_path, CPU)
    tokens = torch.randint(3, VOCABULARY, (2, 12))
    states = walk_to(model, 0, tokens, tmp_path)
    broken = {"model.layers.0.mlp.down_proj.weight": torch.full((32, 48), float("inf"))}
    with pytest.raises(NotFiniteError, match="block 0 gives hidden states that are not finite"):
        advance(model, 0, states, tmp_path / "out.safetensors", 2, "safetensors", model.dtype, broken)


def test_a_file_of_statistics_names_every_input_by_its_first_linear(tmp_path):
    entry = InputStatistics(("q", "k", "v"), torch.eye(3), torch.zeros(3), 7)
    write_statistics(tmp_path / "block.safetensors", [entry])
    assert set(read_tensors(tmp_path / "block.safetensors")) == {"q.gram", "q.mean"}
    (again,) = read_statistics(tmp_path / "block.safetensors", CPU)
    assert (again.linears, again.tokens) == (entry.linears, entry.tokens)
