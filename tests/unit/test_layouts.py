"""Structured solutions as checkpoints: every layout loads as plain transformers and answers as the masked model."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages import restart
from stages.artifacts.manifest import read_json, read_manifest, write_manifest
from stages.assembly import layout_facts, layout_of, write_checkpoint
from stages.errors import ArchitectureError, ArtifactError, ParameterError
from stages.models import fresh, roles
from stages.models.load import load_model
from stages.models.streamed import StreamedModel
from stages.models.units import units_of
from stages.restart import compare_afresh
from tests.unit.structured_solutions import write_structured
from tests.unit.tiny import CONFIGS, VOCABULARY, save_tiny, tiny_model

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


def made(folder, wanted, **solution):
    """The solution, the layout it got, and the checkpoint's folder."""
    model = StreamedModel(folder / "model", CPU)
    pruned = write_structured(model, folder / "solution", **solution)
    layout = layout_of(pruned, wanted, False)
    target = folder / f"out_{wanted}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    write_checkpoint(folder / "model", target, pruned, layout, lambda done: None)
    return pruned, layout, target


def masked(pruned):
    """The whole dense model with the solution's weights and biases."""
    model = AutoModelForCausalLM.from_pretrained(pruned.model.checkpoint.folder).eval()
    for index in range(pruned.model.blocks):
        for name, tensor in pruned.block(index).items():
            module, _, kind = name.rpartition(".")
            setattr(model.get_submodule(module), kind, torch.nn.Parameter(tensor.to(model.dtype)))
    return model


def text_of(model, tokens, **options):
    return model.generate(tokens, max_new_tokens=6, do_sample=False, eos_token_id=None, **options)


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
    assert layout.parameters == pruned.model.parameters - removed
    facts = layout_facts(pruned, layout)
    assert facts["channels"] == layout.values["block_channels"]
    assert [len(heads) for heads in facts["heads"]] == layout.values["block_key_value_heads"]
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


def answering(change):
    """What the fresh process would answer, changed, without the process."""

    def answers(jobs):
        found = []
        for job in jobs:
            model, begin = load_model(Path(job.folder)), torch.tensor([job.tokens])
            sequence = model.generate(begin, max_new_tokens=job.new_tokens, do_sample=False, eos_token_id=None)
            with torch.no_grad():
                found.append(change(fresh.Answer(sequence[0].tolist(), model(sequence).logits[0])))
        return found

    return answers


def test_a_checkpoint_that_answers_otherwise_is_refused(tiny, tokens, monkeypatch):
    pruned, layout, folder = tiny("llama", "hetero")

    def compare():
        return compare_afresh(folder, pruned, tokens[0], 1e-3, False, layout)

    monkeypatch.setattr(restart, "answers", answering(lambda answer: answer))
    assert compare()["ways"].keys() == {"remote", "imported"}
    assert compare()["max_logit_difference"] < 1e-5
    monkeypatch.setattr(restart, "answers", answering(lambda one: replace(one, logits=one.logits + 0.01)))
    with pytest.raises(ArtifactError, match=r"differ by 0\.01\d*: expected at most 0\.001"):
        compare()
    monkeypatch.setattr(restart, "answers", lambda jobs: (_ for _ in ()).throw(ValueError("no such class")))
    with pytest.raises(ArtifactError, match="did not load in a fresh process: no such class"):
        compare()


def solved(workspace, architecture, **solution):
    """A workspace with a structured solution, as after solve, whose fresh process is this one."""
    w = workspace(architecture)
    texts = read_manifest(w.folder / "data/texts")["calibration"]
    write_structured(StreamedModel(w.folder / "data/model", CPU), w.folder / "data/solution", **solution)
    facts = read_manifest(w.folder / "data/solution")
    facts["calibration"] = {"text": texts, "sequences": 6, "length": 16, "seed": 0}
    write_manifest(w.folder / "data/solution", {key: value for key, value in facts.items() if key != "files"})
    return w


def test_the_stage_tells_the_layout_and_the_comparison_of_attention_that_heads_are_gone(workspace, monkeypatch):
    monkeypatch.setattr(restart, "answers", answering(lambda answer: answer))
    w = solved(workspace, "qwen2", biases=("attention.o", "mlp.down"), seed=3)
    w.run("assemble", "compare_attention")
    manifest = read_json(w.folder / "data/pruned/pruning_manifest.json")
    layout = manifest["layout"]
    assert (layout["name"], layout["class"]) == ("hetero", "HeteroQwen2ForCausalLM")
    assert layout["parameters"] < layout["parameters_dense"]
    assert "import secateur" in layout["load"]
    assert manifest["reloaded"]["max_logit_difference"] < 1e-5
    assert "modeling_hetero.py" in manifest["files"]
    told = read_json(w.folder / "metrics/attention.json")
    assert told["state"] == "off"
    assert "heads were removed" in told["reason"]


def test_attention_is_compared_where_all_heads_stay_however_narrow_the_mlp(workspace, monkeypatch):
    monkeypatch.setattr(restart, "answers", answering(lambda answer: answer))
    w = solved(workspace, "llama", heads=False)
    w.run("assemble", "compare_attention")
    assert read_json(w.folder / "data/pruned/pruning_manifest.json")["layout"]["name"] == "hetero"
    assert read_json(w.folder / "metrics/attention.json")["state"] == "measured"


@pytest.mark.parametrize(
    ("architecture", "layout", "solution", "told"),
    [
        ("llama", "uniform", {}, "uniform wants as many heads in every block, got 1 to 2: rank each block by itself"),
        ("gpt2", "hetero", {}, "hetero has classes for llama, mistral, qwen2, qwen3, got gpt2: use uniform"),
        ("gpt2", "uniform", {"equal": True}, "keep all heads (solve.rules: roles [attention], sparsity 0) or"),
        ("opt", "uniform", {"equal": True}, "embed_dim must be divisible by num_heads"),
        ("gemma", "auto", {"biases": ("mlp.down",)}, "compensate by weights instead of biases"),
        ("mistral", "padded", {"biases": ("mlp.down",)}, "compensate by weights instead of biases or use hetero"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_had_is_refused_with_what_would_work(architecture, layout, solution, told, workspace):
    w = solved(workspace, architecture, **solution)
    w.change(assemble={"layout": layout})
    code, line = w.fail("assemble")
    assert code == 2
    assert told in line
    assert not (w.folder / "data/pruned").exists()


def test_single_weights_leave_no_layout_to_choose(workspace):
    w = workspace("llama", assemble={"layout": "uniform"})
    w.run("extract", "statistics", "solve")
    code, line = w.fail("assemble")
    assert code == 2
    assert "assemble.layout: uniform is for methods that remove heads and channels" in line


def test_linears_of_unknown_roles_and_masks_that_keep_a_removed_unit_are_told(tiny, monkeypatch):
    pruned, _, _ = tiny("llama", "hetero")
    write_structured(pruned.model, pruned.solutions[0].parent, seed=1)
    masks = pruned.masks(1)
    monkeypatch.setattr(
        type(pruned), "masks", lambda self, index: {one: torch.ones_like(k) for one, k in masks.items()}
    )
    with pytest.raises(ArtifactError, match="block 1: a mask keeps weights of removed"):
        pruned.units(1)
    monkeypatch.undo()
    monkeypatch.setitem(roles.SUFFIXES, "mlp.down_proj", "other")
    with pytest.raises(ArchitectureError, match="add the names of the linears to stages/models/roles"):
        layout_of(pruned, "auto", False)
