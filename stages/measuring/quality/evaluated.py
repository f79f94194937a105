"""The model that is evaluated, dense or pruned, opened with its tokenizer and the evaluation text, all checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.artifacts.manifest import read_json, read_manifest, trusts_code, verify_all
from stages.artifacts.places import MODEL, PRUNED, PRUNING_MANIFEST, TEXTS
from stages.artifacts.tokens import read_tokens
from stages.measuring.quality.windows import Window, windows_of
from stages.models.imaging.sampling import is_image_model
from stages.models.loading.load import load_model, load_tokenizer, longest_input
from stages.params import Params
from stages.params.kinds import check_kind
from stages.params.positions import check_positions

FOLDERS = {"dense": MODEL, "pruned": PRUNED}


@dataclass(frozen=True)
class Evaluated:
    """A loaded causal language model, and the text that its perplexity is measured on.

    tokenizer: None where neither tasks nor BOS need one; files: hashes of the model's files, by name.
    tokens: (n,) ids; tokens_sha256: of their file; text: facts about it; windows: of the protocol.
    """

    model: Any
    tokenizer: Any
    files: Mapping[str, str]
    tokens: Tensor
    tokens_sha256: str
    text: Mapping[str, Any]
    windows: list[Window]


def open_evaluated(params: Params, which: str) -> Evaluated:
    """Load model `which` (dense or pruned), whose files must be those of its manifest.

    Raises ArtifactError for other files, ParameterError for a protocol that text or model cannot
    serve.
    """
    settings, texts = params.evaluate, read_manifest(TEXTS)
    tokens = read_tokens(TEXTS, "evaluation", texts)
    manifest = read_manifest(MODEL) if which == "dense" else read_json(PRUNING_MANIFEST)
    verify_all(FOLDERS[which], manifest)
    trust = trusts_code(manifest if which == "dense" else manifest.get("source", {}))
    model = load_model(FOLDERS[which], params.compute.dtype, params.compute.device, trust)
    check_kind(params, model.config.sequence_length if is_image_model(model) else None)
    wants_tokenizer = settings.perplexity.bos or settings.tasks.names
    tokenizer = load_tokenizer(FOLDERS[which], trust) if wants_tokenizer else None
    windows = windows_of(settings.perplexity, len(tokens), getattr(tokenizer, "bos_token_id", None))
    check_positions(params, longest_input(model), ("evaluate.perplexity", "evaluate.tasks"))
    hashes = texts["files"]["evaluation.parquet"]
    return Evaluated(model, tokenizer, manifest["files"], tokens, hashes, texts["evaluation"], windows)
