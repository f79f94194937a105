"""Llama, Mistral, Qwen2 and Qwen3 whose blocks keep different numbers of heads and channels, as pruning left them.

The blocks are transformers' own: only their linears have other sizes. config.json tells them, a number a block:
`block_key_value_heads` (each with its query heads) and `block_channels` of the MLP. `output_biases` names the linears
(o_proj, down_proj) that have a bias which the dense model lacks. The rest of config.json is the dense model's.

This file lies in the checkpoint and needs torch and transformers only.
"""

from typing import Any

from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)


def _resized(linear: nn.Linear, inputs: int = 0, outputs: int = 0, bias: bool = False) -> nn.Linear:
    return nn.Linear(
        inputs or linear.in_features,
        outputs or linear.out_features,
        bias=bias or linear.bias is not None,
        device=linear.weight.device,
        dtype=linear.weight.dtype,
    )


class Hetero:
    """A causal language model with linears of the sizes that its configuration tells, block by block."""

    model: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        if config.block_channels is None:
            return
        biases = config.output_biases or ()
        for index, block in enumerate(self.model.layers):
            attention, mlp = block.self_attn, block.mlp
            keys = config.block_key_value_heads[index] * attention.head_dim
            queries, channels = keys * attention.num_key_value_groups, config.block_channels[index]
            attention.q_proj = _resized(attention.q_proj, outputs=queries)
            attention.k_proj = _resized(attention.k_proj, outputs=keys)
            attention.v_proj = _resized(attention.v_proj, outputs=keys)
            attention.o_proj = _resized(attention.o_proj, inputs=queries, bias="o_proj" in biases)
            mlp.gate_proj = _resized(mlp.gate_proj, outputs=channels)
            mlp.up_proj = _resized(mlp.up_proj, outputs=channels)
            mlp.down_proj = _resized(mlp.down_proj, inputs=channels, bias="down_proj" in biases)
            mlp.intermediate_size = channels

    def _get_static_cache_init_shape(self) -> None:
        """A static cache is made as blocks first write to it: one shape would not serve them all."""


class HeteroLlamaConfig(LlamaConfig):
    """Configuration of HeteroLlamaForCausalLM."""

    model_type = "hetero_llama"
    block_key_value_heads = block_channels = output_biases = None


class HeteroMistralConfig(MistralConfig):
    """Configuration of HeteroMistralForCausalLM."""

    model_type = "hetero_mistral"
    block_key_value_heads = block_channels = output_biases = None


class HeteroQwen2Config(Qwen2Config):
    """Configuration of HeteroQwen2ForCausalLM."""

    model_type = "hetero_qwen2"
    block_key_value_heads = block_channels = output_biases = None


class HeteroQwen3Config(Qwen3Config):
    """Configuration of HeteroQwen3ForCausalLM."""

    model_type = "hetero_qwen3"
    block_key_value_heads = block_channels = output_biases = None


class HeteroLlamaForCausalLM(Hetero, LlamaForCausalLM):
    """Llama with its own sizes in each block."""

    config_class = HeteroLlamaConfig


class HeteroMistralForCausalLM(Hetero, MistralForCausalLM):
    """Mistral with its own sizes in each block."""

    config_class = HeteroMistralConfig


class HeteroQwen2ForCausalLM(Hetero, Qwen2ForCausalLM):
    """Qwen2 with its own sizes in each block."""

    config_class = HeteroQwen2Config


class HeteroQwen3ForCausalLM(Hetero, Qwen3ForCausalLM):
    """Qwen3 with its own sizes in each block."""

    config_class = HeteroQwen3Config
