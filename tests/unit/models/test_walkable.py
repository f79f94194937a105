"""What cannot be walked block by block is refused at fetch; weights outside of linears are counted and told."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from stages.errors import ArchitectureError, SourceError
from stages.models.streaming.coverage import coverage_of
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.trial import check_walk, first_of_each_kind
from stages.params.fetching import LocalModel
from stages.sources.model import write_model
from tests.helpers.tiny import ARCHITECTURES, MIXTURES, save_tiny, tiny_model

CPU = torch.device("cpu")
BEFORE = ("extract", "statistics")


def fetched(architecture, folder):
    """What fetch makes of a tiny model as transformers saves it; raises what fetch would."""
    source, target = folder / "source", folder / "target"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model(architecture).save_pretrained(source)
    target.mkdir()
    return write_model(LocalModel(source="local", path=source), target)


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MIXTURES])
def test_models_that_are_walked_pass_the_trial(architecture, tmp_path):
    save_tiny(tmp_path, architecture)
    coverage = coverage_of(check_walk(tmp_path, trust_remote_code=False))
    assert (coverage.share == 1) == (architecture in ARCHITECTURES)


@pytest.mark.parametrize(
    ("architecture", "told"),
    [
        ("mamba", "MambaForCausalLM: backbone.layers.0.mixer.dt_proj (1 of the 4 linears of block 0) is not called"),
        ("jamba", "JambaForCausalLM: model.layers.0.mamba.dt_proj "),
        ("rwkv", "RwkvForCausalLM: block 1 does not run on its own (ValueError: "),
        ("xlm", "XLMWithLMHeadModel: what leaves block 0 of transformer.attentions is not what enters the next"),
        ("gemma3n", "Gemma3nForCausalLM: block 0 does not run on its own (RuntimeError: "),
        ("bart", "BartForCausalLM: model.decoder.layers.0.encoder_attn.k_proj (4 of the 10 linears of block 0) is not"),
    ],
)
def test_a_model_that_cannot_be_walked_is_refused_at_fetch_with_the_reason(architecture, told, tmp_path):
    with pytest.raises(SourceError) as raised:
        fetched(architecture, tmp_path)
    assert str(raised.value).startswith(f"fetch.model: {told}")
    assert "\n" not in str(raised.value)


def test_an_encoder_decoder_is_refused_at_fetch(tmp_path):
    sizes = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    T5ForConditionalGeneration(T5Config(**sizes)).save_pretrained(tmp_path / "source")
    (tmp_path / "target").mkdir()
    with pytest.raises(SourceError, match=r"fetch\.model: transformers cannot build a causal language model"):
        write_model(LocalModel(source="local", path=tmp_path / "source"), tmp_path / "target")


def test_a_block_that_needs_what_an_earlier_one_kept_is_refused(tmp_path, monkeypatch):
    """As models do that share keys and values between blocks: alone, such a block would run, and differ."""
    forward, kept = LlamaDecoderLayer.forward, {}

    def keeping(self, hidden_states, *args, **kwargs):
        output = forward(self, hidden_states, *args, **kwargs)
        first = kept.setdefault("first", output) if self.self_attn.layer_idx == 0 else kept.pop("first", 0)
        return output if self.self_attn.layer_idx == 0 else output + first

    save_tiny(tmp_path, "llama")
    check_walk(tmp_path, trust_remote_code=False)
    monkeypatch.setattr(LlamaDecoderLayer, "forward", keeping)
    with pytest.raises(ArchitectureError, match="block 1 alone gives other hidden states than in the whole model"):
        check_walk(tmp_path, trust_remote_code=False)


def test_a_block_of_every_kind_is_tried(tmp_path):
    for architecture, kinds in (("llama", [0]), ("gemma2", [0, 1]), ("deepseek_v3", [0, 1])):
        save_tiny(tmp_path / architecture, architecture)
        assert first_of_each_kind(StreamedModel(tmp_path / architecture, CPU)) == kinds


@pytest.mark.parametrize("architecture", MIXTURES)
def test_a_layer_wise_method_refuses_experts_and_names_them(architecture, workspace):
    w = workspace(architecture)
    w.run(*BEFORE)
    code, line = w.fail("solve")
    assert code == 2
    block = 1 if architecture in ("deepseek_v3", "glm4_moe") else 0
    assert " of the blocks' weights lie outside of nn.Linear: " in line
    assert f"model.layers.{block}.mlp.experts.gate_up_proj (4, " in line
    assert "expected at most 5.0% (solve.max_uncovered)" in line
    w.change(solve={"max_uncovered": float(line.split("raise solve.max_uncovered to ")[1].split()[0])})
    w.run("solve")


@pytest.mark.parametrize(
    ("solve", "told"),
    [
        ({"method": "newton", "sparsity": 0.3}, "block 0: its linears are attention.k, attention.o, attention.q"),
        ({"method": "d_gating", "sparsity": 0.3}, "block 0: its linears are attention.k, attention.o, attention.q"),
        ({"method": "slicegpt", "sparsity": 0.3}, "slicegpt"),
        (
            {"rules": [{"roles": ["attention.q", "attention.k"], "method": "attention_iht", "settings": {}}]},
            "lie outside of nn.Linear",
        ),
    ],
)
def test_other_methods_refuse_experts_too(solve, told, workspace):
    w = workspace("mixtral", solve=solve)
    w.run(*BEFORE)
    code, line = w.fail("solve")
    assert (code, told in line) == (2, True), line


def test_sparsity_is_of_all_weights_of_the_blocks_with_the_covered_share_beside_it(workspace):
    w = workspace("mixtral", solve={"sparsity": 0.5, "max_uncovered": 1.0})
    w.run(*BEFORE, "solve", "assemble")
    facts = json.loads((w.folder / "data/pruned/pruning_manifest.json").read_text())
    model = StreamedModel(w.folder / "data/pruned", CPU)
    weights = [
        model.weights.stored_parameter(name) for index in range(model.blocks) for name in model.block_weights(index)
    ]
    zeros, total = sum(int((one == 0).sum()) for one in weights), sum(one.numel() for one in weights)
    linears = sum(linear.shape[0] * linear.shape[1] for index in range(model.blocks) for linear in model.linears(index))
    assert facts["block_weights"] == total
    assert facts["sparsity"] == pytest.approx(zeros / total)
    assert facts["covered"] == pytest.approx(linears / total)
    assert facts["linears"] == {"sparsity": 0.5, "weights": linears, "kept": linears // 2}
    assert facts["sparsity"] < 0.1 < facts["linears"]["sparsity"]
