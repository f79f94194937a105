"""A GGUF file, as llama.cpp reads it, turned into a Hugging Face folder of safetensors."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from stages.errors import SourceError


def dequantise(path: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write model and tokenizer of the GGUF file at `path` to `folder`, weights in `dtype`.

    Raises SourceError for a file that transformers cannot read.
    """
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=dtype, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except (OSError, ValueError, KeyError, IndexError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"fetch.model: {path.name} cannot be dequantised ({why}): use a GGUF file of an architecture that "
            "transformers reads, or the model's safetensors"
        ) from error
    _plain(model).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not know of their quantisation, which may not be saved."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    with torch.device("meta"):
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
