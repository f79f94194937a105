"""The walk over a model written plainly: the whole of it in memory, hooks on its linears."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import read_manifest
from stages.artifacts.tokens import read_tokens, sample_windows

INPUT_GROUPS = {
    "llama": (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)),
    "phi": (("q_proj", "k_proj", "v_proj", "fc1"), ("dense",), ("fc2",)),
}
WRITES_TO_RESIDUAL = ("o_proj", "down_proj", "dense", "fc2")
HELD_OUT = 1  # of six sequences


def table(workspace):
    """Rows of the solution's table of linears, by linear."""
    return {row["linear"]: row for row in LINEARS.read(workspace.folder / "data/solution/linears.parquet")}


def pruned_model(workspace):
    """The checkpoint that assemble wrote."""
    return AutoModelForCausalLM.from_pretrained(workspace.folder / "data/pruned").eval()


def calibration_windows(w):
    """Token ids (sequences, length) that extract calibrates on."""
    texts = w.folder / "data/texts"
    return sample_windows(read_tokens(texts, "calibration", read_manifest(texts)), 6, 16, 0)


def inputs_of(model, linears, tokens):
    """What enters some linears, by name, while the model runs on tokens."""
    seen, hooks = {}, []
    for linear in linears:

        def note(module, args, name=linear.name):
            seen[name] = args[0]

        hooks.append(model.get_submodule(linear.name).register_forward_pre_hook(note))
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def residual_stream(model, prefix, index, names, tokens):
    """Hidden states of a block with what its linears so far have added: what enters it, and their outputs."""
    seen = []
    hooks = [model.get_submodule(f"{prefix}.{index}").register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )]  # fmt: skip
    hooks += [model.get_submodule(name).register_forward_hook(lambda m, a, out: seen.append(out)) for name in names]
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return sum(seen)
