"""LlamaGen's published image tokenizers (VQ-16, VQ-8) as transformers' JanusVQVAE, the same network by other names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import JanusVQVAE, JanusVQVAEConfig
from transformers.initialization import no_init_weights

from stages.artifacts.tensorfile import write_tensors
from stages.errors import SourceError, reason_of
from stages.models.importing.torch_files import check_tensors, read_state

PLACES = ("ema", "model", "state_dict")
"""Keys of the file that may hold the tensors: averaged weights before the last ones, as in LlamaGen's evaluation."""

CODEBOOK = "quantize.embedding.weight"
USAGE = "quantize.codebook_used"
"""A count that only training reads."""

RENAMED = (
    (r"^encoder\.down\.", "encoder.conv_blocks."),
    (r"^decoder\.up\.", "decoder.conv_blocks."),
    (r"^(\w+\.conv_blocks\.\d+)\.block\.", r"\1.res."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)
"""From transformers' names to the published ones."""


@dataclass(frozen=True)
class PublicTokenizer:
    """The tensors of a published image tokenizer, checked, under their published names.

    place: key of the file that held them; factor: pixels a code stands for, along a side; codes: rows of the codebook.
    """

    tensors: dict[str, Tensor]
    place: str
    factor: int
    codes: int
    dtype: torch.dtype
    config: JanusVQVAEConfig

    @classmethod
    def read(cls, path: Path) -> PublicTokenizer:
        """Raises SourceError for a file that is not whole or belongs to another network."""
        state, place = read_state(path, PLACES, CODEBOOK)
        config = _config_of(state, path)
        names = _published_names(config, path)
        dtype = check_tensors(path, state, dict(names.values()), [USAGE])
        levels = len(config.channel_multiplier)
        return cls(state, place, 2 ** (levels - 1), config.num_embeddings, dtype, config)

    def write(self, folder: Path, grid: int) -> None:
        """Write config.json and model.safetensors for square images of `grid` codes on a side; codebook normalised."""
        config = JanusVQVAEConfig(**{**self.config.to_dict(), "num_patches": grid})
        config.architectures, config.dtype = [JanusVQVAE.__name__], self.dtype
        tensors = {name: self.tensors[old] for name, (old, _) in _published_names(config, folder).items()}
        tensors[CODEBOOK] = F.normalize(tensors[CODEBOOK].float(), dim=-1).to(self.dtype)
        folder.mkdir()
        config.save_pretrained(folder)
        write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


def _config_of(state: dict[str, Tensor], path: Path) -> JanusVQVAEConfig:
    """Sizes, from the shapes of a few tensors; the others are compared with these."""
    try:
        base, channels = state["encoder.conv_in.weight"].shape[:2]
        codes, width = state[CODEBOOK].shape
        levels = _count(state, r"encoder\.conv_blocks\.(\d+)\.")
        widths = [state[f"encoder.conv_blocks.{level}.res.0.conv1.weight"].shape[0] for level in range(levels)]
        return JanusVQVAEConfig(
            base_channels=base,
            in_channels=channels,
            channel_multiplier=[width // base for width in widths],
            num_res_blocks=_count(state, r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
            latent_channels=state["quant_conv.weight"].shape[1],
            out_channels=state["decoder.conv_out.weight"].shape[0],
            embed_dim=width,
            num_embeddings=codes,
        )
    except KeyError as error:
        raise SourceError(
            f"{path} has no tensor {error.args[0]}: expected LlamaGen's image tokenizer, such as vq_ds16_c2i.pt"
        ) from None
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise SourceError(f"{path} is no image tokenizer of LlamaGen's ({reason_of(error)})") from error


def _published_names(config: JanusVQVAEConfig, path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Published name and shape of every tensor of the network, by transformers' name."""
    try:
        with torch.device("meta"), no_init_weights():
            parameters = JanusVQVAE(config).state_dict()
    except ValueError as error:  # torch: channels that do not divide into the groups of a normalisation
        raise SourceError(f"{path} is no image tokenizer of LlamaGen's ({reason_of(error)})") from error
    names = dict[str, tuple[str, tuple[int, ...]]]()
    for name, parameter in parameters.items():
        published = name
        for pattern, replacement in RENAMED:
            published = re.sub(pattern, replacement, published)
        names[name] = (published, tuple(parameter.shape))
    return names


def _count(state: dict[str, Tensor], pattern: str) -> int:
    """One more than the largest number in the names that begin so."""
    return max((int(found[1]) for name in state if (found := re.match(pattern, name))), default=-1) + 1
