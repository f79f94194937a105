"""LlamaGen's published class-conditional transformers as checkpoints of LlamaGenForImageGeneration.

What differs from transformers' Llama: queries, keys and values are one linear (parted here), the rotary embedding turns
pairs of neighbours, (2j, 2j + 1), in place of (j, j + half a head) (rows of q and k are permuted, which leaves scores
as they are), and classes have embeddings of their own (put behind those of the codes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig

from stages.artifacts.tensorfile import TensorWriter
from stages.errors import SourceError
from stages.models.classes.llamagen import CLASSES
from stages.models.classes.modeling_llamagen import SAMPLING, LlamaGenConfig, LlamaGenForImageGeneration
from stages.models.classes.registration import class_values, copy_code
from stages.models.importing.torch_files import check_tensors, read_state

PLACES = ("model", "module", "state_dict")
"""Keys of the file that may hold the tensors, in the order in which LlamaGen's sampler looks; FSDP writes them bare."""

HEADS = {
    (12, 768): 12, (24, 1024): 16, (36, 1280): 20, (48, 1536): 24, (48, 2560): 40, (22, 2048): 32, (24, 3200): 32,
    (32, 4096): 32,
}  # fmt: skip
"""Query heads of the published sizes (B, L, XL, XXL, XXXL, 1B, 3B, 7B), by blocks and width."""

CODES, CLASS_TABLE, TEXT = "tok_embeddings.weight", "cls_embedding.embedding_table.weight", "cls_embedding.cap_proj."
COPIED = {
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Parts of a block that only change their names."""

IGNORED = ("freqs_cis", "causal_mask")
"""Tables that some files hold, and the model makes itself."""

Part = tuple[str, list[Tensor]]
"""A tensor of the new checkpoint: its name, and the tensors whose rows it consists of, one after another."""


@dataclass(frozen=True)
class PublicTransformer:
    """The tensors of a published transformer, checked; place: key of the file that held them."""

    tensors: dict[str, Tensor]
    place: str
    layers: int
    width: int
    heads: int
    key_value_heads: int
    channels: int
    codes: int
    classes: int
    dtype: torch.dtype

    @classmethod
    def read(cls, path: Path, heads: int | None, classes: int) -> PublicTransformer:
        """The transformer in the `.pt` file at `path`.

        heads: query heads, which no tensor tells; None: those of the published size. classes: without "no class".
        Raises SourceError for a file that is not whole, conditional on text, or trained without class dropout.
        """
        state, place = read_state(path, PLACES, CODES)
        if any(name.startswith(TEXT) for name in state):
            raise SourceError(
                f"{path} is conditional on text: expected a class-conditional model, such as c2i_B_256.pt"
            )
        codes, width = _shape(state, path, CODES)
        _check_classes(path, _shape(state, path, CLASS_TABLE)[0], classes)
        layers = max((int(found[1]) for name in state if (found := re.match(r"layers\.(\d+)\.", name))), default=0) + 1
        heads = _published_heads(path, layers, width) if heads is None else heads
        fused, channels = (
            _shape(state, path, f"layers.0.{part}.weight")[0] for part in ("attention.wqkv", "feed_forward.w1")
        )
        sizes = (layers, width, heads, _key_value_heads(path, width, heads, fused), channels, codes, classes)
        expected = _published_shapes(*sizes)
        return cls(state, place, *sizes, check_tensors(path, state, expected, IGNORED))

    def config(self, grid: int) -> LlamaGenConfig:
        """For square images of `grid` codes on a side."""
        return LlamaGenConfig(
            vocab_size=self.codes,
            num_classes=self.classes,
            max_position_embeddings=1 + grid**2,
            hidden_size=self.width,
            intermediate_size=self.channels,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            dtype=self.dtype,
        )

    def write(self, folder: Path, grid: int) -> None:
        """Write config.json, generation_config.json, model.safetensors and the class's code; dtype as it was."""
        values = class_values(self.config(grid).to_diff_dict(), CLASSES)
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        GenerationConfig(**SAMPLING).save_pretrained(folder)
        copy_code(LlamaGenForImageGeneration, folder)
        layout = {
            name: (self.dtype, (sum(len(part) for part in parts), *parts[0].shape[1:])) for name, parts in self.parts()
        }
        with TensorWriter(folder / "model.safetensors", layout, {"format": "pt"}) as writer:
            for name, parts in self.parts():
                for part in parts:
                    writer.write(name, part)

    def parts(self) -> Iterator[Part]:
        """Every tensor of the new checkpoint, made when it is asked for."""
        yield "model.embed_tokens.weight", [self.tensors[CODES], self.tensors[CLASS_TABLE]]
        for index in range(self.layers):
            old, new, size = f"layers.{index}.", f"model.layers.{index}.", self.width // self.heads
            kept = self.key_value_heads * size
            query, key, value = self.tensors[f"{old}attention.wqkv.weight"].split([self.width, kept, kept])
            yield f"{new}self_attn.q_proj.weight", [halves(query, size)]
            yield f"{new}self_attn.k_proj.weight", [halves(key, size)]
            yield f"{new}self_attn.v_proj.weight", [value]
            for before, after in COPIED.items():
                yield f"{new}{after}.weight", [self.tensors[f"{old}{before}.weight"]]
        yield "model.norm.weight", [self.tensors["norm.weight"]]
        yield "lm_head.weight", [self.tensors["output.weight"]]


def halves(weight: Tensor, size: int) -> Tensor:
    """Rows of a linear to heads of `size`: row 2j of each head to row j, row 2j + 1 to row size / 2 + j."""
    return weight.view(-1, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _published_shapes(
    layers: int, width: int, heads: int, key_value_heads: int, channels: int, codes: int, classes: int
) -> dict[str, tuple[int, ...]]:
    """Shape of every published tensor."""
    shapes = dict[str, tuple[int, ...]]({CODES: (codes, width), CLASS_TABLE: (classes + 1, width)})
    for index in range(layers):
        parts = {
            "attention.wqkv": (width + 2 * key_value_heads * (width // heads), width),
            "attention.wo": (width, width),
            "feed_forward.w1": (channels, width),
            "feed_forward.w3": (channels, width),
            "feed_forward.w2": (width, channels),
            "attention_norm": (width,),
            "ffn_norm": (width,),
        }
        shapes |= {f"layers.{index}.{part}.weight": shape for part, shape in parts.items()}
    return shapes | {"norm.weight": (width,), "output.weight": (codes, width)}


def _shape(state: dict[str, Tensor], path: Path, name: str) -> tuple[int, int]:
    """Rows and columns of a tensor that tells sizes."""
    if name not in state or state[name].ndim != 2:
        raise SourceError(f"{path} has no matrix {name}: expected LlamaGen's class-conditional model, as c2i_B_256.pt")
    rows, columns = state[name].shape
    return int(rows), int(columns)


def _check_classes(path: Path, rows: int, classes: int) -> None:
    """Raise SourceError unless the table has the classes and "no class"."""
    if rows == classes:
        raise SourceError(
            f'{path}: {CLASS_TABLE} has {rows} rows, expected {classes} classes and "no class", which guidance needs: '
            f"the model was trained without class dropout (or --classes {rows - 1} is meant)"
        )
    if rows != classes + 1:
        raise SourceError(f"{path}: {CLASS_TABLE} has {rows} rows, expected {classes} + 1: give --classes {rows - 1}")


def _key_value_heads(path: Path, width: int, heads: int, fused: int) -> int:
    """Heads of keys and of values: what the rows of wqkv, `fused`, leave beside `heads` query heads."""
    if heads < 1 or width % heads or width // heads % 4:
        raise SourceError(
            f"{path}: --heads: expected heads of a multiple of 4 dimensions, got a width of {width} in {heads} heads"
        )
    count, rest = divmod(fused - width, 2 * (width // heads))
    if rest or count < 1 or heads % count:
        raise SourceError(
            f"{path}: --heads: {fused} rows of layers.0.attention.wqkv.weight are not {heads} query heads of "
            f"{width // heads} with key and value heads that they share equally: give the number it was trained with"
        )
    return count


def _published_heads(path: Path, layers: int, width: int) -> int:
    if (layers, width) not in HEADS:
        known = ", ".join(f"{layers} x {width}" for layers, width in HEADS)
        raise SourceError(
            f"{path}: {layers} blocks of width {width} are no published size ({known}): give the query heads that "
            "the model was trained with, --heads N"
        )
    return HEADS[layers, width]
