"""LlamaGen (Sun et al. 2024): a Llama that generates images, as codes of an image tokenizer in row-major order.

A sequence is token ids like any other Llama's: a class, `vocab_size + label`, then the codes of an image, each below
`vocab_size`; `null_class` in place of the class begins the unconditional half of a guided batch. Logits are over the
codes. The rotary embedding turns half of a head's pairs by the row of a code and half by its column, and makes queries
and keys of the class zero. q and k are stored with Llama's pairs (j, j + head_dim / 2), where public checkpoints have
(2j, 2j + 1): the same scores.

This file and modeling_hetero.py lie in the checkpoint and need torch and transformers only.
"""

import copy
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from .modeling_hetero import Hetero

SAMPLING = {"guidance_scale": 1.0, "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
"""How codes are drawn where neither the call nor generation_config.json tells."""


class LlamaGenConfig(LlamaConfig):
    """Configuration of LlamaGenForImageGeneration.

    vocab_size: codes of the image tokenizer, the rows of the head; num_classes: without "no class".
    max_position_embeddings: the class and the codes of an image, whose number is a square.
    block_key_value_heads, block_channels, output_biases: sizes of pruned blocks, see modeling_hetero.py; None: dense.
    """

    model_type = "llamagen"
    vocab_size: int = 16384
    num_classes: int = 1000
    max_position_embeddings: int = 257
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    block_key_value_heads: list[int] | None = None
    block_channels: list[int] | None = None
    output_biases: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Raises ValueError for embeddings tied to the head, or codes that make no square."""
        super().__post_init__(**kwargs)
        if self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings: the head of LlamaGen has no rows for classes, so it is not tied")
        if self.codes != self.max_position_embeddings - 1:
            raise ValueError(
                f"max_position_embeddings: expected 1 + a square number of codes, got {self.max_position_embeddings}"
            )

    @property
    def grid_size(self) -> int:
        """Rows, and columns, of the codes of an image."""
        return isqrt(self.max_position_embeddings - 1)

    @property
    def codes(self) -> int:
        """Codes of an image."""
        return self.grid_size**2

    @property
    def sequence_length(self) -> int:
        """Tokens of an image: its class and its codes."""
        return 1 + self.codes

    @property
    def null_class(self) -> int:
        """Token id of "no class"."""
        return self.vocab_size + self.num_classes


class GridRotaryEmbedding(nn.Module):
    """Cosines and sines of a two-dimensional rotary embedding; all zero at position 0, the class.

    Position p > 0 is row (p - 1) // grid, column (p - 1) % grid. The first half of a head's pairs turns by the row, the
    other by the column, each at angles base^(-2i / (head_dim / 2)) times it.
    """

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.grid, self.pairs = config.grid_size, int(config.head_dim or 0) // 2
        self.base = float(config.rope_parameters["rope_theta"])  # type: ignore[index]

    def forward(self, hidden_states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """For positions (batch, n): two tensors (batch, n, head_dim) in the dtype of the hidden states."""
        exponents = torch.arange(0, self.pairs, 2, device=position_ids.device, dtype=torch.float32) / self.pairs
        place = position_ids[..., None] - 1
        rows, columns = (part.float() * self.base**-exponents for part in (place // self.grid, place % self.grid))
        angles, image = torch.cat((rows, columns, rows, columns), -1), place >= 0
        return (angles.cos() * image).to(hidden_states.dtype), (angles.sin() * image).to(hidden_states.dtype)


class Guidance(LogitsProcessor):
    """Classifier-free guidance: u + scale (c - u) for the first `guided` codes, then c alone.

    From logits (2 batch, vocabulary), conditional c and then unconditional u, to (batch, vocabulary).
    """

    def __init__(self, scale: float, guided: int | None) -> None:
        self.scale, self.guided = scale, guided

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See the class; input_ids (batch, 1 + codes so far)."""
        conditional, unconditional = scores.chunk(2)
        if self.guided is not None and input_ids.shape[1] > self.guided:
            return conditional
        return unconditional + self.scale * (conditional - unconditional)


class LlamaGenForImageGeneration(Hetero, LlamaForCausalLM):
    """LlamaGen, class-conditional: logits of image codes; `generate(class_labels=...)` samples images."""

    config_class = LlamaGenConfig
    _tied_weights_keys: dict[str, str] = {}  # noqa: RUF012 (transformers' own declaration)

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__(config)
        rows = config.vocab_size + config.num_classes + 1
        whole = self.model.embed_tokens.weight
        self.model.embed_tokens = nn.Embedding(rows, config.hidden_size, device=whole.device, dtype=whole.dtype)
        self.model.rotary_emb = GridRotaryEmbedding(config)
        self._init_weights(self.model.embed_tokens)

    def prompt(self, class_labels: Tensor) -> Tensor:
        """Token ids (batch, 1) of class labels (batch,); `num_classes` stands for "no class"."""
        labels = torch.as_tensor(class_labels, device=self.device).flatten()
        most = self.config.num_classes
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) <= most:
            raise ValueError(f"class_labels: expected 0 to {most}, got {int(labels.min())} to {int(labels.max())}")
        return self.config.vocab_size + labels[:, None]

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        class_labels: Tensor | None = None,
        guided_codes: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Codes (batch, codes) of images of the given classes, drawn with classifier-free guidance.

        class_labels: (batch,); without it, transformers' own `generate` of token ids.
        guided_codes: how many codes are guided, None for all; kwargs: guidance_scale, do_sample, temperature, top_k,
        top_p, use_cache and others of transformers'. Guidance comes before them, as in the public sampler.
        """
        if class_labels is None:
            if guided_codes is not None:
                raise ValueError("guided_codes: expected class_labels beside it")
            return super().generate(inputs, **kwargs)
        if inputs is not None:
            raise ValueError("inputs: expected class_labels or token ids, got both")
        settings = copy.deepcopy(kwargs.pop("generation_config", None) or self.generation_config)
        chosen = {name: kwargs.pop(name, None) for name in SAMPLING}
        for name, default in SAMPLING.items():
            own = getattr(settings, name, None)
            chosen[name] = next(value for value in (chosen[name], own, default) if value is not None)
        scale = float(chosen.pop("guidance_scale"))
        if not chosen["do_sample"]:
            chosen = dict.fromkeys(chosen) | {"do_sample": False}
        settings.guidance_scale = 1.0  # transformers' own guidance would run the unconditional half on its own
        kwargs = settings.update(**chosen, max_new_tokens=self.config.codes, **kwargs)
        prompt, guided = self.prompt(class_labels), scale != 1.0
        processors = LogitsProcessorList([Guidance(scale, guided_codes)] if guided else [])
        processors += kwargs.pop("logits_processor", None) or []
        sequences = super().generate(
            prompt,
            generation_config=settings,
            attention_mask=torch.ones_like(prompt),
            logits_processor=processors,
            guided=guided,
            **kwargs,
        )
        return sequences[:, 1:]

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, guided: bool = False, **kwargs: Any) -> Any:
        """Inputs of the next forward; `guided`: a second half of the batch has "no class" in place of its class."""
        inputs = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        if not guided:
            return inputs
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                inputs[name] = torch.cat((value, value))
        if inputs["input_ids"].shape[1] == input_ids.shape[1]:  # the class is among them
            inputs["input_ids"][len(input_ids) :, 0] = self.config.null_class
        return inputs
