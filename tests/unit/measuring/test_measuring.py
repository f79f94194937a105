"""Size, multiply-accumulates and generation of loaded models; what rounds come to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stages.errors import ArchitectureError
from stages.measuring.speed.generation import generate
from stages.measuring.speed.rounds import speed_ratios, speeds, time_in_turns
from stages.measuring.speed.size import image_macs, last_logits, macs_of, size_of
from stages.models.structure import find_blocks
from tests.helpers.tiny import ARCHITECTURES, CONFIGS, VOCABULARY, prompts, tiny_model

PROMPT, NEW = 10, 5


def counted(model, **inputs):
    """MACs that torch counts while the model runs, and its answer. Fused attention is not counted: eager is."""
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        answer = model(use_cache=True, **inputs)
    return counter.get_total_flops() / 2, answer


def narrowed(model):
    """A Llama whose blocks differ in width: the second has half the MLP, the third half the attention."""
    _, blocks = find_blocks(model)
    mlp, attention = blocks[1].mlp, blocks[2].self_attn
    mlp.gate_proj, mlp.up_proj, mlp.down_proj = nn.Linear(32, 24), nn.Linear(32, 24), nn.Linear(24, 32)
    attention.q_proj, attention.o_proj = nn.Linear(32, 16, bias=False), nn.Linear(16, 32, bias=False)
    attention.k_proj, attention.v_proj = nn.Linear(32, 8, bias=False), nn.Linear(32, 8, bias=False)
    return model.requires_grad_(False)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "narrowed"])
def test_macs_are_those_that_torch_counts(architecture, monkeypatch):
    if "sliding_window" in CONFIGS.get(architecture, ("", {}))[1]:
        monkeypatch.setitem(CONFIGS[architecture][1], "sliding_window", PROMPT + NEW)
    model = narrowed(tiny_model("llama")) if architecture == "narrowed" else tiny_model(architecture)
    told = macs_of(model, PROMPT, NEW)
    prefill, answer = counted(model, input_ids=prompts(), **last_logits(model))
    assert told["prefill_macs"] * 2 * PROMPT == pytest.approx(prefill)
    decode = 0.0
    for _ in range(NEW - 1):
        macs, answer = counted(model, input_ids=prompts(2, 1), past_key_values=answer.past_key_values)
        decode += macs
    assert told["decode_macs"] * 2 * (NEW - 1) == pytest.approx(decode)


def test_macs_of_an_image_are_those_that_torch_counts():
    """Both halves of a guided batch, the class and every code but the last, with a cache."""
    model = tiny_model("llamagen")
    codes = model.config.codes
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        model.generate(class_labels=torch.arange(3), guidance_scale=1.75)
    assert 3 * image_macs(model, codes, halves=2) == pytest.approx(counter.get_total_flops() / 2)


def test_a_model_that_gives_every_logit_is_counted_with_them():
    model = tiny_model("llama")
    part = macs_of(model, PROMPT, NEW)
    plain = model.forward
    model.forward = lambda input_ids, use_cache=None, past_key_values=None: plain(
        input_ids=input_ids, use_cache=use_cache, past_key_values=past_key_values
    )
    assert last_logits(model) == {}
    whole = macs_of(model, PROMPT, NEW)
    assert whole["prefill_macs"] - part["prefill_macs"] == pytest.approx(32 * VOCABULARY * (1 - 1 / PROMPT))
    assert whole["decode_macs"] == part["decode_macs"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameters_are_counted_once_where_they_are_tied(architecture):
    model = tiny_model(architecture)
    told = size_of(model)
    storages = {one.data_ptr(): one.numel() for one in model.state_dict(keep_vars=True).values() if one.requires_grad}
    assert told["parameters"] == sum(storages.values()) == model.num_parameters()
    assert told["weight_bytes"] == 4 * told["parameters"]
    assert told["block_parameters"] == sum(
        one.numel() for name, one in model.named_parameters() if name.startswith(f"{find_blocks(model)[0]}.")
    )


def test_half_precision_halves_the_bytes():
    full, half = (size_of(tiny_model("qwen2", dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert full["weight_bytes"] == 2 * half["weight_bytes"]
    assert full["parameters"] == half["parameters"]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "narrowed"])
def test_tokens_are_those_of_the_models_own_generate(architecture):
    model = narrowed(tiny_model("llama")) if architecture == "narrowed" else tiny_model(architecture)
    model.generation_config.eos_token_id = None
    found = generate(model, prompts(), 16).tokens
    own = model.generate(prompts(), attention_mask=torch.ones(2, PROMPT), max_new_tokens=16, do_sample=False)
    assert torch.equal(found, own[:, PROMPT:])


def test_blocks_whose_macs_cannot_be_counted_are_refused():
    model = tiny_model("llama")
    find_blocks(model)[1][1].mlp.experts = nn.Parameter(torch.zeros(2, 3, 4))
    with pytest.raises(ArchitectureError, match="block 1 of LlamaForCausalLM has weights of more than two dimensions"):
        macs_of(model, PROMPT, NEW)
    model = tiny_model("llama")
    block = find_blocks(model)[1][2].self_attn
    block.mixing, block.o_proj = block.o_proj, nn.Identity()
    with pytest.raises(ArchitectureError, match=r"block 2 .* has 0 linears attention\.o: its MACs cannot be counted"):
        macs_of(model, PROMPT, NEW)


def test_a_model_without_a_cache_is_refused():
    model = tiny_model("llama")
    plain = model.forward
    model.forward = lambda input_ids, use_cache: plain(input_ids=input_ids, use_cache=False)
    with pytest.raises(ArchitectureError, match="gives no key-value cache"):
        generate(model, prompts(), 2)


def test_models_take_turns_and_warmup_is_left_out():
    order = list[str]()

    def noted(name):
        model = tiny_model("llama")
        model.register_forward_pre_hook(lambda *_: order.append(name))
        return model

    ticks = list[None]()
    models = {"dense": noted("dense"), "pruned": noted("pruned")}
    rows = time_in_turns(models, prompts(), 2, warmup=1, repeats=2, tick=lambda: ticks.append(None))
    assert order == 3 * ["dense", "dense", "pruned", "pruned", *3 * ["dense", "pruned"]]
    assert len(ticks) == 6
    for phase, rounds, tokens in (("prefill", range(8), 20), ("decode", (0, 4), 2)):
        part = [row for row in rows if row["phase"] == phase]
        assert [(row["round"], row["model"]) for row in part] == [(i, name) for i in rounds for name in models]
        assert {row["tokens"] for row in part} == {tokens}
    assert all(row["seconds"] > 0 for row in rows)


def test_ratios_are_taken_within_a_round():
    """The machine is half as fast in the second round, which no ratio may show."""
    seconds = {"dense": (2.0, 4.0, 2.0), "pruned": (1.0, 2.0, 1.0)}
    rows = [
        {"round": index, "model": model, "phase": phase, "tokens": 8, "seconds": one}
        for model, values in seconds.items() for phase in ("prefill", "decode") for index, one in enumerate(values)
    ]  # fmt: skip
    assert speeds(rows, "dense")["prefill"] == {"median": 4.0, "lowest": 2.0, "highest": 4.0}
    assert speed_ratios(rows, "pruned", "dense")["decode"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}


def test_ratios_are_no_whole_numbers():
    rows = [
        {"round": 0, "model": model, "phase": phase, "tokens": 8, "seconds": seconds}
        for model, seconds in (("dense", 3.0), ("pruned", 2.0)) for phase in ("prefill", "decode")
    ]  # fmt: skip
    assert speed_ratios(rows, "pruned", "dense")["prefill"]["median"] == pytest.approx(1.5)
    assert speed_ratios(rows, "dense", "pruned")["decode"]["median"] == pytest.approx(2 / 3)


def test_decoding_is_told_with_every_new_token_but_the_first():
    rows = time_in_turns({"dense": tiny_model("llama")}, prompts(), 5, warmup=0, repeats=1, tick=lambda: None)
    assert {row["tokens"] for row in rows if row["phase"] == "decode"} == {len(prompts()) * 4}
