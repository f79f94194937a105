"""Units of every architecture: what belongs to a head or a channel, and what it costs."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from stages.errors import ArchitectureError
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import KINDS, parameters_of, units_of
from tests.helpers.tiny import _GROUPED, ARCHITECTURES, CONFIGS, VOCABULARY, config_class, save_tiny

EVERY_ARCHITECTURE = pytest.mark.parametrize("architecture", ARCHITECTURES)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "n_positions": 64}
OTHERS = {
    "stablelm": ("StableLmConfig", _GROUPED),
    "starcoder2": ("Starcoder2Config", _GROUPED),
    "phi3": ("Phi3Config", _GROUPED),
    "glm": ("GlmConfig", _GROUPED | {"head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", _GROUPED | {"head_dim": 8, "sliding_window": 8}),
    "bigcode": ("GPTBigCodeConfig", _GPT),
    "bigcode_heads": ("GPTBigCodeConfig", _GPT | {"multi_query": False}),
}
"""Architectures whose linears have names that are known, beside those that everything is tested on."""
GROUPED = {"llama", "llama_bias", "mistral", "qwen2", "qwen3", "gemma2", "llamagen"}
HEADS = dict.fromkeys(ARCHITECTURES, 4) | dict.fromkeys(GROUPED, 2) | {"gemma": 1}
CHANNELS = dict.fromkeys(ARCHITECTURES, 48) | {"gpt2": 128, "gpt_neox": 48}
TOKENS = torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The streamed model of an architecture, saved once, and a fresh copy of the whole one."""

    @functools.cache
    def saved(architecture):
        folder = tmp_path_factory.mktemp(architecture)
        if architecture in CONFIGS:
            model = save_tiny(folder, architecture)
            return StreamedModel(folder, torch.device("cpu")), model
        name, sizes = OTHERS[architecture]
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(folder)
        return StreamedModel(folder, torch.device("cpu")), model

    return lambda architecture: (saved(architecture)[0], copy.deepcopy(saved(architecture)[1]))


@torch.no_grad()
def cut(model, units, keep, rows=True, columns=True):
    """Zero what belongs to the units that are not kept: rows of the sources with their biases, columns of the sink."""
    for linear, stays in units.kept_rows(keep).items():
        module = model.get_submodule(linear.name)
        if rows:
            linear.weight(module.weight)[~stays] = 0
            if module.bias is not None:
                module.bias[~stays] = 0
    if columns:
        units.sink.weight(model.get_parameter(units.sink.tensor))[:, ~units.kept_columns(keep)] = 0


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


@EVERY_ARCHITECTURE
@EVERY_KIND
def test_units_share_out_all_inputs_of_their_sink_and_rows_of_their_sources(architecture, kind, opened):
    streamed, _ = opened(architecture)
    for index in range(streamed.blocks):
        units = units_of(streamed, index)[KINDS.index(kind)]
        assert (units.kind, units.block) == (kind, index)
        assert units.count == (HEADS if kind == "heads" else CHANNELS)[architecture]
        assert sorted(units.columns.flatten().tolist()) == list(range(units.sink.shape[1]))
        for linear, rows in units.sources:
            assert len(rows) == units.count
            assert sorted(rows.flatten().tolist()) == list(range(linear.shape[0]))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *OTHERS])
@EVERY_KIND
def test_what_a_unit_puts_out_is_made_by_its_rows_and_read_by_its_columns(architecture, kind, opened):
    """Without its rows a unit puts out 0, as if nothing read it; without its columns its rows do not matter."""
    streamed, model = opened(architecture)
    units, dense = units_of(streamed, 1)[KINDS.index(kind)], logits(model)
    for start in (0, 1) if kind == "channels" else {0, units.count - 1}:
        keep = torch.arange(units.count) != start if kind == "heads" else torch.arange(units.count) % 3 != start
        found = []
        for parts in ({"columns": False}, {"rows": False}, {}):
            model = opened(architecture)[1]
            cut(model, units, keep, **parts)
            found.append(logits(model))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=2e-5)
        assert torch.equal(found[1], found[2])
        assert float((found[1] - dense).abs().max()) > 1e-3


@EVERY_ARCHITECTURE
def test_half_of_all_units_can_go_from_every_block_at_once(architecture, opened):
    streamed, model = opened(architecture)
    generator, columns = torch.Generator().manual_seed(1), copy.deepcopy(model)
    for index in range(streamed.blocks):
        for units in units_of(streamed, index):
            keep = torch.rand(units.count, generator=generator) < 0.5
            cut(model, units, keep)
            cut(columns, units, keep, rows=False)
    assert torch.equal(logits(model), logits(columns))


@EVERY_ARCHITECTURE
@EVERY_KIND
def test_parameters_are_all_that_goes_with_a_unit_and_no_more(architecture, kind, opened):
    """Ones in place of all parameters: what is zero after the cut is what the units hold."""
    streamed, model = opened(architecture)
    for index in range(streamed.blocks):
        units = units_of(streamed, index)[KINDS.index(kind)]
        for count in (1, units.count):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(1)
            keep = torch.arange(units.count) >= count
            cut(model, units, keep)
            gone = sum(int((parameter == 0).sum()) for parameter in model.parameters())
            assert gone == count * units.parameters


SMALLER = {
    "llama": ("intermediate_size", True), "llama_bias": ("intermediate_size", True),
    "mistral": ("intermediate_size", True), "qwen2": ("intermediate_size", False),
    "qwen3": ("intermediate_size", True), "gemma": ("intermediate_size", False),
    "gemma2": ("intermediate_size", True), "phi": ("intermediate_size", False), "opt": ("ffn_dim", False),
    "gpt_neox": ("intermediate_size", False), "gpt2": ("n_inner", False), "llamagen": ("intermediate_size", True),
}  # fmt: skip
"""What sets an architecture's channels, and whether it can have fewer heads of the same width."""


def size_of(architecture, **changes):
    name, sizes = CONFIGS[architecture]
    config = config_class(name)(**(sizes | changes))
    with torch.device("meta"):
        return sum(one.numel() for one in AutoModelForCausalLM.from_config(config).parameters())


@EVERY_ARCHITECTURE
def test_parameters_are_the_difference_between_two_models(architecture, opened):
    streamed, _ = opened(architecture)
    heads, channels = units_of(streamed, 0)
    setting, fewer_heads = SMALLER[architecture]
    less = size_of(architecture) - size_of(architecture, **{setting: channels.count - 5})
    assert less == 5 * channels.parameters * streamed.blocks
    if fewer_heads:
        width = CONFIGS[architecture][1].get("head_dim", 8)
        one_group = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": width}
        assert size_of(architecture) - size_of(architecture, **one_group) == heads.parameters * streamed.blocks


def test_parameters_of_places_are_those_of_all_their_units(opened):
    streamed, _ = opened("llama")
    heads, channels = units_of(streamed, 0)
    assert heads.parameters == 32 * 16 + 2 * 32 * 8 + 16 * 32  # two query heads of 8, a key, a value, columns of o
    assert channels.parameters == 3 * 32
    assert parameters_of([heads, channels]) == 2 * heads.parameters + 48 * 3 * 32


def test_fused_rows_are_found_in_the_order_of_their_architecture(opened):
    neox, _ = opened("gpt_neox")
    gpt2, _ = opened("gpt2")
    (interleaved,), (stacked,) = units_of(neox, 0)[0].sources, units_of(gpt2, 0)[0].sources
    assert interleaved[1][1].tolist() == list(range(24, 48))  # head by head, q, k and v of each
    assert stacked[1][1].tolist() == [*range(8, 16), *range(40, 48), *range(72, 80)]  # all of q, of k, of v


@pytest.mark.parametrize(
    ("name", "sizes", "told"),
    [
        ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4}, "two linears other"),
        ("GPTJConfig", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "rotary_dim": 4}, "linears"),
        ("Olmo2Config", _GROUPED, "q_norm.weight with its 32 entries does not belong to single units"),
        ("BitNetConfig", _GROUPED, "attn_sub_norm.weight with its 32 entries"),
        ("MixtralConfig", _GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}, "linears"),
    ],
)
def test_architectures_whose_roles_are_not_known_are_refused(name, sizes, told, tmp_path):
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**sizes)).eval()
    model.save_pretrained(tmp_path)
    streamed = StreamedModel(tmp_path, torch.device("cpu"))
    with pytest.raises(ArchitectureError, match=f"block 0: .*{told}.*use a layer-wise method"):
        units_of(streamed, 0)


@pytest.mark.parametrize(
    ("architecture", "setting", "value", "told"),
    [
        ("llama", "num_key_value_heads", 4, "k_proj has 16 rows where 4 heads over 4 keys of 8 want 32"),
        ("llama", "head_dim", 16, "q_proj has 32 rows where 4 heads over 2 keys of 16 want 64"),
        ("gpt2", "num_key_value_heads", 2, "c_attn has 96 rows where 4 heads over 2 keys of 8 want 64"),
    ],
)
def test_shapes_that_are_not_those_of_the_configuration_are_refused(architecture, setting, value, told, opened):
    streamed = copy.deepcopy(opened(architecture)[0])
    setattr(streamed.config, setting, value)
    with pytest.raises(ArchitectureError, match=f"block 1: .*{told}.*use a layer-wise method"):
        units_of(streamed, 1)
