"""Structured solutions as checkpoints: every layout loads as plain transformers and answers as the masked model."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.artifacts.manifest import read_json, write_manifest
from stages.assembly.facts import budget_facts, layout_facts
from stages.errors import ArchitectureError, ParameterError
from stages.models.export import fresh
from stages.models.loading.load import load_model
from stages.models.streaming.units import units_of
from tests.helpers.structured_solutions import made, masked, text_of
from tests.helpers.tiny import CONFIGS, VOCABULARY, save_tiny, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def tiny(tmp_path):
    """A function that makes a tiny model and writes a solution of it in a layout."""

    def make(architecture, layout, **solution):
        save_tiny(tmp_path / "model", architecture)
        return made(tmp_path, layout, **solution)

    return make


def same_answers(loaded, expected, tokens):
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, expected(tokens).logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(text_of(loaded, tokens), text_of(expected, tokens))


def random_architecture(seed):
    """A configuration and what its solution is like: grouped keys or not, biases, tied, widths of heads."""
    draw = random.Random(seed)
    kind = ("Llama", "Mistral", "Qwen2", "Qwen3", "Llama", "Phi", "GPT2", "OPT", "GPTNeoX", "Gemma")[seed % 10]
    groups, per_group, width = draw.choice([2, 3, 4]), draw.choice([1, 2, 3]), draw.choice([4, 8])
    sizes = {
        "vocab_size": VOCABULARY, "num_hidden_layers": draw.choice([2, 3]), "tie_word_embeddings": draw.random() < 0.5,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    channels, bias = draw.choice([17, 32, 48]), draw.random() < 0.5
    if kind == "GPT2":
        sizes |= {"n_embd": groups * width, "n_head": groups, "n_layer": sizes.pop("num_hidden_layers")}
        sizes |= {"n_inner": channels, "n_positions": sizes.pop("max_position_embeddings")}
    elif kind == "OPT":
        sizes |= {"hidden_size": groups * width, "num_attention_heads": groups, "ffn_dim": channels}
    elif kind in ("Phi", "GPTNeoX"):
        sizes |= {"hidden_size": groups * 8, "num_attention_heads": groups, "intermediate_size": channels}
    else:
        hidden = groups * per_group * 4 if kind == "Llama" else 24
        sizes |= {"hidden_size": hidden, "intermediate_size": channels, "head_dim": width}
        sizes |= {"num_attention_heads": groups * per_group, "num_key_value_heads": groups}
    if kind == "Llama":
        sizes |= {"attention_bias": bias, "mlp_bias": draw.random() < 0.5}
    if kind == "Mistral":
        sizes |= {"sliding_window": draw.choice([None, 8])}
    biases = draw.choice([(), (), ("attention.o", "mlp.down"), ("mlp.down",)])
    return f"{kind}Config", sizes, {"equal": draw.random() < 0.5, "biases": biases, "seed": seed}


@pytest.mark.parametrize("seed", range(20))
def test_every_layout_of_a_random_architecture_answers_as_the_masked_model(seed, tmp_path, tokens, monkeypatch):
    name, sizes, solution = random_architecture(seed)
    monkeypatch.setitem(CONFIGS, "random", (name, sizes))
    save_tiny(tmp_path / "model", "random")
    expected, refused, told = None, [], []
    for wanted in ("hetero", "uniform", "padded", "auto"):
        try:
            pruned, layout, folder = made(tmp_path, wanted, **solution)
        except (ArchitectureError, ParameterError) as error:
            refused.append(wanted)
            told.append(str(error))
            continue
        expected = expected or masked(pruned)
        loaded = load_model(folder)
        same_answers(loaded, expected, tokens)
        loaded.save_pretrained(tmp_path / "saved")
        same_answers(load_model(tmp_path / "saved"), expected, tokens)
        assert sum(parameter.numel() for parameter in loaded.parameters()) == layout.parameters
    has_class = name in ("LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config")
    assert ("hetero" in refused) != has_class
    assert not has_class or "auto" not in refused
    assert all(line.startswith("assemble.layout: ") for line in told)
    assert "padded" not in refused or solution["biases"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ["llama", "llama_bias", "mistral", "qwen2", "qwen3"])
def test_blocks_of_different_widths_generate_with_every_cache(architecture, attention, tiny, tokens):
    pruned, layout, folder = tiny(architecture, "hetero", biases=("attention.o",))
    assert len(set(layout.values["block_channels"])) > 1
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, device_map="cpu").eval()
    expected = text_of(masked(pruned), tokens)
    static = {"cache_implementation": "static"}
    for options in ({}, static, static | {"prefill_chunk_size": 5}, {"use_cache": False}):
        assert torch.equal(text_of(model, tokens, **options), expected)


@pytest.mark.parametrize("architecture", ["llama_bias", "qwen2", "qwen3"])
def test_units_that_go_take_just_their_parameters(architecture, tiny):
    pruned, layout, folder = tiny(architecture, "hetero")
    removed = sum(
        int((~pruned.units(index)[units.kind]).sum()) * units.parameters
        for index in range(pruned.model.blocks)
        for units in units_of(pruned.model, index)
    )
    assert layout.parameters == pruned.model.weights.parameter_count - removed
    facts, budget = layout_facts(pruned, layout), budget_facts(pruned, {"sparsity": 0.5})
    assert [block["channels"] for block in facts["blocks"]] == layout.values["block_channels"]
    assert [block["heads"] for block in facts["blocks"]] == layout.values["block_key_value_heads"]
    assert [len(block["heads_kept"]) for block in facts["blocks"]] == layout.values["block_key_value_heads"]
    for counts in (facts["parameters"], facts["block_parameters"], budget["unit_parameters"]):
        assert counts["dense"] - counts["pruned"] == removed
    assert budget["removed"] == pytest.approx(removed / budget["unit_parameters"]["dense"])
    assert budget["asked"] == 0.5
    assert sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values()) == layout.parameters


@pytest.mark.parametrize(
    ("sizes", "heads", "expected"),
    [
        ({}, 3, "LlamaForCausalLM"),  # 3 heads of 8 divide 24
        ({}, 2, "LlamaForCausalLM"),
        ({"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4}, 3, "MistralForCausalLM"),
        (
            {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4, "attention_bias": True},
            3,
            "SeedOssForCausalLM",
        ),
    ],
)
def test_heads_that_llama_refuses_are_taken_by_classes_that_compute_the_same(
    sizes, heads, expected, tmp_path, monkeypatch, tokens
):
    base = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    sizes = CONFIGS["llama"][1] | base | sizes
    monkeypatch.setitem(CONFIGS, "random", ("LlamaConfig", sizes))
    save_tiny(tmp_path / "model", "random")
    for seed in range(50):
        pruned, layout, folder = made(tmp_path, "uniform", equal=True, seed=seed)
        if int(pruned.units(0)["heads"].sum()) == heads:
            break
    assert layout.values["architectures"] == [expected]
    same_answers(load_model(folder), masked(pruned), tokens)


def test_shards_keep_their_tensors_dtype_and_an_index_that_tells_new_ones(tmp_path, tokens):
    tiny_model("llama", torch.bfloat16).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    write_manifest(tmp_path / "model", {"source": {}})
    pruned, _, folder = made(tmp_path, "hetero", biases=("mlp.down",))
    index = read_json(folder / "model.safetensors.index.json")
    files = {name: load_file(folder / name) for name in set(index["weight_map"].values())}
    assert len(files) > 1
    assert {tensor: name for name, state in files.items() for tensor in state} == index["weight_map"]
    tensors = [tensor for state in files.values() for tensor in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors)
    same_answers(load_model(folder, "float32"), masked(pruned).float(), tokens)


def test_a_fresh_process_gives_the_same_with_and_without_this_package(tmp_path, tokens):
    jobs, expected = [], []
    for architecture, wanted, ways in (
        ("llama", "hetero", ("remote", "imported")),
        ("mistral", "hetero", ("remote", "imported")),
        ("qwen2", "hetero", ("imported", "remote")),
        ("qwen3", "hetero", ("remote",)),
        ("qwen2", "padded", ("plain",)),
        ("gpt2", "padded", ("plain",)),
        ("opt", "uniform", ("plain",)),
    ):
        folder = tmp_path / f"{architecture}_{wanted}"
        save_tiny(folder / "model", architecture)
        solution = {"equal": wanted == "uniform", "heads": wanted != "uniform", "biases": ("attention.o",)}
        pruned, _, checkpoint = made(folder, wanted, **solution)
        jobs += [fresh.Job(str(checkpoint), tokens[0].tolist(), 6, way) for way in ways]
        expected += [masked(pruned)] * len(ways)
    for answer, model in zip(fresh.answers(jobs), expected, strict=True):
        sequence = text_of(model, tokens)
        assert answer.sequence == sequence[0].tolist()
        with torch.no_grad():
            torch.testing.assert_close(answer.logits, model(sequence).logits[0], rtol=1e-4, atol=1e-5)
