"""Import of GGUF files (llama.cpp's format) as Hugging Face folders of safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from stages.errors import SourceError, reason_of


def dequantise(path: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write model and tokenizer of the GGUF file at `path` to `folder`, weights in `dtype`.

    Raises SourceError for a file that transformers cannot read.
    """
    transformers_logging.disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(path.parent),
            gguf_file=path.name,
            quantization_config=GgufConfig(dequantize=True),  # never packed weights, nor kernels from the hub
            dtype=dtype,
            local_files_only=True,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except Exception as error:  # gguf and transformers fail each in their own way on a file that is not what it says
        raise SourceError(
            f"fetch.model: {path.name} cannot be dequantised ({reason_of(error)}): use a GGUF file of an architecture "
            "that transformers reads, or the model's safetensors"
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise SourceError(f"fetch.model: {path.name} has no tensor for {missing[0]}: it is not whole")
    unknown = sorted(report["unexpected_keys"])
    if unknown:
        raise SourceError(f"fetch.model: {path.name} holds {unknown[0]}, which no part of its architecture reads")
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
