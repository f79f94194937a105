"""Load a finished checkpoint as anyone would, and compare it with what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.errors import ArtifactError
from stages.models.loading.load import load_model
from stages.walk.pruned import Pruned

TOKENS = 64


def compare(folder: Path, pruned: Pruned, tokens: Tensor, largest: float, trust_remote_code: bool) -> dict[str, Any]:
    """Load `folder` by AutoModelForCausalLM and compare weights (exactly) and logits with the walk's.

    tokens: ids to compute logits of; largest: the difference allowed between logits.
    Gives the figures for the manifest; raises ArtifactError if the checkpoint is not what was meant.
    """
    model = pruned.model
    loaded = load_model(folder, str(model.dtype).removeprefix("torch."), str(model.device), trust_remote_code)
    state, compared = loaded.state_dict(), 0

    def same_block(index: int) -> Mapping[str, Tensor]:
        nonlocal compared
        meant = pruned.block(index)
        for name, weight in meant.items():
            if not torch.equal(state[name].cpu(), weight.to(model.dtype)):
                raise ArtifactError(f"{name} was not the same after loading {folder} again: nothing was written")
        compared += len(meant)
        return meant

    ids = tokens[:TOKENS].unsqueeze(0)
    with torch.no_grad():
        again = loaded(input_ids=ids.to(model.device), use_cache=False).logits
    difference = float((again - model.logits(ids, same_block)).abs().max())
    if not difference <= largest:
        raise ArtifactError(
            f"the reloaded checkpoint's logits differ by {difference:g}: expected at most {largest:g} "
            "(assemble.max_logit_difference)"
        )
    return {"tensors_compared": compared, "logits_compared": again.numel(), "max_logit_difference": difference}
