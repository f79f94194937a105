"""Mapping between a checkpoint's tensor names and a model's parameter names, by transformers' own renamings.

transformers renames some tensors when it loads (GPT-NeoX's `embed_out`, the prefix that early GPT-2
checkpoints lack). The same renamings say where a parameter is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.utils.loading_report import LoadStateDictInfo

LEFTOVERS = ("attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias", "rotary_emb.inv_freq")
"""Causal masks and frequencies that older releases of transformers saved beside the weights."""


def stored_names(model: PreTrainedModel, tensors: Iterable[str]) -> dict[str, str]:
    """The stored tensor's name of each parameter and buffer of `model` that the checkpoint holds.

    Tensors that transformers would merge or split while loading (fused experts, say) are left out: such
    parameters are not stored as they are used.
    """
    renamed = _renamed(model, tensors).items()
    return {name: tensor for tensor, (name, merged) in renamed if name is not None and not merged}


def unknown_tensors(model: PreTrainedModel, tensors: Iterable[str]) -> list[str]:
    """Names of tensors that belong to nothing in `model`, without those that transformers itself ignores."""
    unknown = {tensor for tensor, (name, _) in _renamed(model, tensors).items() if name is None}
    report = LoadStateDictInfo(
        missing_keys=set(),
        unexpected_keys=unknown,
        mismatched_keys=set(),
        error_msgs=[],
        conversion_errors={},
        skipped_pp_keys=set(),
    )
    model._adjust_missing_and_unexpected_keys(report)
    return sorted(name for name in report.unexpected_keys if not name.endswith(LEFTOVERS))


def _renamed(model: PreTrainedModel, tensors: Iterable[str]) -> dict[str, tuple[str | None, bool]]:
    """For each tensor the name in `model` that it is read into (None: there is none), and whether with others."""
    transforms = get_model_conversion_mapping(model)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    known = dict(model.state_dict())
    renamed = dict[str, tuple[str | None, bool]]()
    for tensor in tensors:
        name, converter = rename_source_key(tensor, renamings, converters, model.base_model_prefix, known)
        renamed[tensor] = (name if name in known else None), converter is not None
    return renamed
