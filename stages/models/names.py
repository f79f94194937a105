"""Which tensor of a checkpoint is which parameter of the model.

transformers renames some tensors when it loads (GPT-NeoX's `embed_out`, the prefix that early GPT-2
checkpoints lack). The same renamings, asked of transformers itself, tell where a parameter is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


def stored_names(model: PreTrainedModel, tensors: Iterable[str]) -> dict[str, str]:
    """For each parameter and buffer of `model` that the checkpoint holds, the tensor it is stored as.

    Tensors that transformers would merge or split while loading (fused experts, say) are left out: such
    parameters are not stored as they are used.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    known = dict(model.state_dict())
    found = {}
    for tensor in tensors:
        name, converter = rename_source_key(tensor, renamings, converters, model.base_model_prefix, known)
        if converter is None and name in known:
            found[name] = tensor
    return found
