"""Tokenisation of whole texts."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase

from stages.errors import SourceError


def tokenise(tokenizer: PreTrainedTokenizerBase, text: str, vocabulary: int) -> np.ndarray:
    """Token ids (int32) of the whole text at once, no special tokens added.

    vocabulary: number of ids that the model has. Raises SourceError if the tokenizer yields a larger id.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)
    ids = np.asarray(encoded["input_ids"], dtype=np.int32)
    if ids.size and ids.max() >= vocabulary:
        raise SourceError(
            f"fetch.model: the tokenizer gives token {ids.max()}, expected ids below {vocabulary}, the rows of the "
            "model's embeddings: the tokenizer belongs to another model"
        )
    return ids
