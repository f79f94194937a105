"""The checkpoint of a masked or cut model: the dense tensors with the pruned weights, checked by loading it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.artifacts.places import MODEL
from stages.assembly.checkpoint import checkpoint_bytes, layout_of, write_checkpoint, write_masks
from stages.assembly.facts import budget_facts, layout_facts
from stages.assembly.verify import compare_fresh, compare_masked
from stages.params import Assemble
from stages.runtime.progress import progress
from stages.walk.pruned import Pruned


def assemble_masked(
    pruned: Pruned, folder: Path, tokens: Tensor, settings: Assemble, solve: Mapping[str, Any], trust_remote_code: bool
) -> dict[str, Any]:
    """Write checkpoint and masks to `folder` in the layout of the settings, load it again and compare.

    tokens: calibration ids (n,); solve: the section that the solution was made by. Gives the manifest's facts of it.
    """
    layout = layout_of(pruned, settings.layout, trust_remote_code)
    with progress(total=checkpoint_bytes(MODEL, layout), desc="write", unit="B", unit_scale=True) as bar:
        write_checkpoint(MODEL, folder, pruned, layout, bar.update)
    write_masks(folder, pruned)
    check = compare_masked if layout.values is None else partial(compare_fresh, layout=layout)
    reloaded = check(folder, pruned, tokens, settings.max_logit_difference, trust_remote_code)
    budget = {} if layout.values is None else {"budget": budget_facts(pruned, solve)}
    return {"layout": layout_facts(pruned, layout), **budget, "reloaded": reloaded}
