"""Tiny random models of every architecture, and workspaces that hold one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from stages.artifacts.manifest import write_manifest
from stages.models.classes.llamagen import CLASSES
from stages.params.yamlfile import yaml_text

VOCABULARY = 96
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_NO_SPECIAL: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED | {"tie_word_embeddings": True}),
    "llama_bias": ("LlamaConfig", _GROUPED | {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", _GROUPED | {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3Config", _GROUPED | {"head_dim": 16}),
    "gemma": ("GemmaConfig", _SIZES | {"num_key_value_heads": 1, "head_dim": 8}),
    "gemma2": ("Gemma2Config", _GROUPED | {"head_dim": 8, "attn_logit_softcapping": 2.0, "sliding_window": 8}),
    "phi": ("PhiConfig", _SIZES),
    "opt": (
        "OPTConfig",
        _SIZES | {"ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 16},
    ),
    "gpt_neox": ("GPTNeoXConfig", _SIZES),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64,
            "bos_token_id": 0, "eos_token_id": 1,
        },
    ),
    "llamagen": ("LlamaGenConfig", _GROUPED | {"num_classes": 4, "max_position_embeddings": 65} | _NO_SPECIAL),
}  # fmt: skip
ARCHITECTURES = tuple(CONFIGS)
_LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "first_k_dense_replace": 1,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralConfig", _GROUPED | {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", _GROUPED | _EXPERTS | {"num_experts": 4, "head_dim": 8}),
    "olmoe": ("OlmoeConfig", _GROUPED | _EXPERTS | {"num_experts": 4}),
    "glm4_moe": ("Glm4MoeConfig", _GROUPED | _EXPERTS | {"n_routed_experts": 4, "head_dim": 8}),
    "deepseek_v3": ("DeepseekV3Config", _SIZES | _EXPERTS | _LATENT | {"num_key_value_heads": 4, "head_dim": 4}),
    "gpt_oss": ("GptOssConfig", _GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}),
}
"""Mixture-of-experts models: their experts are three-dimensional parameters, which no linear covers."""
_VOCABULARY = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
UNWALKABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", _VOCABULARY | {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}),
    "jamba": ("JambaConfig", _GROUPED | {"num_experts": 2, "mamba_d_state": 8, "use_mamba_kernels": False}),
    "rwkv": ("RwkvConfig", _VOCABULARY | {"hidden_size": 32, "num_hidden_layers": 3, "attention_hidden_size": 32}),
    "xlm": ("XLMConfig", {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 3, "n_heads": 4}),
    "gemma3n": (
        "Gemma3nTextConfig",
        _GROUPED | {
            "head_dim": 8, "intermediate_size": [48] * 4, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 4,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 4,
            "altup_num_inputs": 2,
        },
    ),
    "bart": (
        "BartConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 48,
         "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "max_position_embeddings": 64},
    ),
}  # fmt: skip
"""Models whose blocks need more than the hidden states that enter them, or hold linears whose input is not seen."""


def config_class(name: str) -> Any:
    """A configuration class of transformers', or LlamaGen's."""
    return CLASSES["llamagen"][0] if name == "LlamaGenConfig" else getattr(transformers, name)


def tiny_model(architecture: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A random model of three blocks, biases and norms not at their trivial values."""
    name, sizes = (CONFIGS | MIXTURES | UNWALKABLE)[architecture]
    config = config_class(name)(**sizes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def save_tiny(folder: Path, architecture: str, **options: Any) -> PreTrainedModel:
    """Save a tiny model as fetch would, and give it."""
    model = tiny_model(architecture, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, save_original_format=False)
    write_manifest(folder, {"source": {"source": "local", "path": "tiny"}})
    return model


def save_tokens(folder: Path, calibration: int = 600, evaluation: int = 300, seed: int = 0) -> None:
    """Random token sets as fetch would write them."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    facts = {}
    for name, count in (("calibration", calibration), ("evaluation", evaluation)):
        ids = torch.randint(3, VOCABULARY, (count,), generator=generator, dtype=torch.int32)
        pq.write_table(pa.table({"token": ids.numpy()}), folder / f"{name}.parquet")
        facts[name] = {"name": f"random {name}", "tokens": count, "sha256": "0" * 64, "join": ""}
    write_manifest(folder, facts)


DENSE_STAGES = ("extract", "statistics")
"""Stages that read the dense model only, before solve."""


def params_values(**sections: Any) -> dict[str, Any]:
    """Values of params.yaml for a tiny workspace; `sections` are merged in, one level deep."""
    values: dict[str, Any] = {
        "compute": {"device": "cpu", "dtype": "auto", "chunk": 4},
        "fetch": {
            "model": {"source": "local", "path": "tiny"},
            "calibration": {"source": "local", "path": "a.txt"},
            "evaluation": {"source": "local", "path": "b.txt"},
        },
        "calibration": {"sequences": 6, "length": 16, "seed": 0},
        "solve": {"method": "magnitude", "sparsity": 0.5},
        "evaluate": {
            "perplexity": {"window": 16, "stride": 16},
            "tasks": {"names": []},
            "attention": {"length": 16},
            "speed": {"prompt": 8, "generate": 8},
        },
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return values


def write_params(folder: Path, **sections: Any) -> None:
    """Write a tiny workspace's params.yaml."""
    (folder / "params.yaml").write_text(yaml_text(params_values(**sections)), encoding="utf-8")


def tiny_workspace(folder: Path, architecture: str = "llama", **sections: Any) -> PreTrainedModel:
    """A folder as it is after fetch: params.yaml, data/model, data/texts."""
    write_params(folder, **sections)
    save_tokens(folder / "data" / "texts")
    return save_tiny(folder / "data" / "model", architecture)


def prompts(batch: int = 2, length: int = 10) -> torch.Tensor:
    """Random token ids (batch, length)."""
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))
