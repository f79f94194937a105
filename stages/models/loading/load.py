"""Whole models and tokenizers from checkpoint folders: for evaluation and timing, not for the walk over blocks."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from stages.errors import ArtifactError, reason_of
from stages.models.classes import hetero, llamagen, sliced  # noqa: F401 (register the classes of checkpoints that are no native model)
from stages.models.loading.compute import DTYPES, device_of, settle_vector_math


def load_model(
    folder: Path, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> PreTrainedModel:
    """The causal language model in `folder`, in evaluation mode.

    dtype:  a torch dtype's name, or auto for the one it was saved in.
    device: cpu, cuda, cuda:<n>, or auto for cuda where there is one.

    Only local safetensors files are read. Code inside the checkpoint runs only with
    `trust_remote_code`. Raises ArtifactError if the folder holds no such checkpoint.
    """
    settle_vector_math()
    target = device_of(device)
    if not (folder / "config.json").is_file():
        raise ArtifactError(f"{folder}/config.json is missing: run the stage that writes {folder} (dvc repro)")
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype="auto" if dtype == "auto" else DTYPES[dtype],
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} cannot be loaded as a causal language model: {reason_of(error)}") from error
    model.eval().requires_grad_(False)
    return model.to(target)  # type: ignore[arg-type, no-any-return]


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer in `folder`; raises ArtifactError if there is none."""
    try:
        return AutoTokenizer.from_pretrained(  # type: ignore[no-any-return]
            str(folder), local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # tokenizers raises bare exceptions, transformers whatever a wrong file leads to
        raise ArtifactError(f"{folder} holds no tokenizer that can be loaded: {reason_of(error)}") from error


def longest_input(model: PreTrainedModel) -> int | None:
    """How many positions the model was made for, or None where its configuration does not say."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(longest) if longest else None
