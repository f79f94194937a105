"""Llama, Mistral, Qwen2 and Qwen3 whose hidden states are rotated and sliced, as SliceGPT leaves them.

Attention and MLP are transformers' own, on hidden states of `sliced_width`. Every residual connection is multiplied
by a matrix, which takes the hidden states from one basis to the next; norms have no scale (it is in the linears after
them) and divide by the dense model's width, `hidden_size`. The states that leave the last block are sliced too, to
`final_width`, or the dense model's own where that is null. Where the embeddings are tied to the head they are whole,
and block 0 begins with a matrix that slices what they give.

This file lies in the checkpoint and needs torch and transformers only.
"""

from typing import Any

import torch
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
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.mistral.modeling_mistral import MistralDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer


def _resized(linear: nn.Linear, inputs: int = 0, outputs: int = 0) -> nn.Linear:
    return nn.Linear(
        inputs or linear.in_features,
        outputs or linear.out_features,
        bias=linear.bias is not None,
        device=linear.weight.device,
        dtype=linear.weight.dtype,
    )


class SlicedNorm(nn.Module):
    """x / sqrt(‖x‖² / width + eps): the RMS norm of the states before they were sliced from `width`, without scale."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Of (..., sliced width); in float32, as transformers' norms."""
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) / self.width + self.eps)
        return x.to(hidden_states.dtype)


class _SlicedBlock:
    """A block on sliced states, with a matrix on each of its two residual connections."""

    self_attn: Any
    mlp: Any

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)  # type: ignore[call-arg]
        width, last = config.sliced_width, layer_idx == config.num_hidden_layers - 1
        leaving = (config.final_width or config.hidden_size) if last else width
        attention, mlp = self.self_attn, self.mlp
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, name, _resized(getattr(attention, name), inputs=width))
        attention.o_proj = _resized(attention.o_proj, outputs=width)
        mlp.gate_proj = _resized(mlp.gate_proj, inputs=width)
        mlp.up_proj = _resized(mlp.up_proj, inputs=width)
        mlp.down_proj = _resized(mlp.down_proj, outputs=leaving)
        self.input_layernorm = SlicedNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = SlicedNorm(config.hidden_size, config.rms_norm_eps)
        self.attention_shortcut = nn.Linear(width, width, bias=False)
        self.mlp_shortcut = nn.Linear(width, leaving, bias=False)
        self.entering = None
        if layer_idx == 0 and config.tie_word_embeddings:
            self.entering = nn.Linear(config.hidden_size, width, bias=False)

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """As the dense block, `kwargs` for its attention, with shortcuts."""
        if self.entering is not None:
            hidden_states = self.entering(hidden_states)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = self.attention_shortcut(hidden_states) + attended
        answer = self.mlp(self.post_attention_layernorm(hidden_states))
        return self.mlp_shortcut(hidden_states) + answer


class _Sliced:
    """A causal language model of sliced blocks."""

    model: Any
    lm_head: Any
    block: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.model.layers = nn.ModuleList(self.block(config, index) for index in range(config.num_hidden_layers))
        if not config.tie_word_embeddings:
            whole = self.model.embed_tokens
            like = {"device": whole.weight.device, "dtype": whole.weight.dtype}
            self.model.embed_tokens = nn.Embedding(whole.num_embeddings, config.sliced_width, whole.padding_idx, **like)
        if config.final_width is not None:
            self.model.norm = SlicedNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = _resized(self.lm_head, inputs=config.final_width)


class SlicedLlamaConfig(LlamaConfig):
    """Configuration of SlicedLlamaForCausalLM."""

    model_type = "sliced_llama"
    sliced_width = final_width = None


class SlicedMistralConfig(MistralConfig):
    """Configuration of SlicedMistralForCausalLM."""

    model_type = "sliced_mistral"
    sliced_width = final_width = None


class SlicedQwen2Config(Qwen2Config):
    """Configuration of SlicedQwen2ForCausalLM."""

    model_type = "sliced_qwen2"
    sliced_width = final_width = None


class SlicedQwen3Config(Qwen3Config):
    """Configuration of SlicedQwen3ForCausalLM."""

    model_type = "sliced_qwen3"
    sliced_width = final_width = None


class SlicedLlamaBlock(_SlicedBlock, LlamaDecoderLayer):
    """A sliced block of Llama."""


class SlicedMistralBlock(_SlicedBlock, MistralDecoderLayer):
    """A sliced block of Mistral."""


class SlicedQwen2Block(_SlicedBlock, Qwen2DecoderLayer):
    """A sliced block of Qwen2."""


class SlicedQwen3Block(_SlicedBlock, Qwen3DecoderLayer):
    """A sliced block of Qwen3."""


class SlicedLlamaForCausalLM(_Sliced, LlamaForCausalLM):
    """Llama on sliced states."""

    config_class, block, _no_split_modules = SlicedLlamaConfig, SlicedLlamaBlock, ["SlicedLlamaBlock"]


class SlicedMistralForCausalLM(_Sliced, MistralForCausalLM):
    """Mistral on sliced states."""

    config_class, block, _no_split_modules = SlicedMistralConfig, SlicedMistralBlock, ["SlicedMistralBlock"]


class SlicedQwen2ForCausalLM(_Sliced, Qwen2ForCausalLM):
    """Qwen2 on sliced states."""

    config_class, block, _no_split_modules = SlicedQwen2Config, SlicedQwen2Block, ["SlicedQwen2Block"]


class SlicedQwen3ForCausalLM(_Sliced, Qwen3ForCausalLM):
    """Qwen3 on sliced states."""

    config_class, block, _no_split_modules = SlicedQwen3Config, SlicedQwen3Block, ["SlicedQwen3Block"]
