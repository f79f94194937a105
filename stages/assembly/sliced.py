"""Writes the checkpoint of a sliced model (SliceGPT): the dense tensors rotated by a solution's bases; checks it.

Rotated weights are made in float64, a block in memory. The logits of what was written are compared with those of the
dense model told to project its hidden states: two ways to compute one function.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.artifacts.places import MODEL
from stages.artifacts.tensorfile import TensorFile, TensorWriter
from stages.assembly.checkpoint import NOT_COPIED
from stages.assembly.verify import compare_sliced
from stages.errors import ParameterError
from stages.models.classes.registration import copy_code
from stages.models.classes.sliced import CLASSES, sliced_values
from stages.models.loading.checkpoint import SINGLE, Checkpoint
from stages.models.loading.skeleton import build_skeleton
from stages.models.streaming.slicing import sliced_block
from stages.models.streaming.streamed import StreamedModel
from stages.models.streaming.units import units_of
from stages.params import Assemble
from stages.runtime.progress import progress
from stages.walk.bases import LAYOUT, read_bases, read_final_basis


def assemble_sliced(
    model: StreamedModel,
    solutions: list[Path],
    folder: Path,
    tokens: Tensor,
    settings: Assemble,
    solve: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the sliced model to `folder`, load it again and compare; gives the manifest's facts of it.

    solve: the section that the solution was made by. Raises ParameterError for any assemble.layout but auto.
    """
    if settings.layout != "auto":
        raise ParameterError(
            f"assemble.layout: {solve['method']} has its own, {LAYOUT}: expected auto, got {settings.layout}"
        )
    write_sliced(model, solutions, MODEL, folder)
    reloaded = compare_sliced(folder, model, solutions, tokens, settings.max_logit_difference)
    return {**sliced_facts(folder, model, solve), "reloaded": reloaded}


def write_sliced(model: StreamedModel, solutions: list[Path], source: Path, target: Path) -> None:
    """Write weights, config.json and modelling code to `target`, with the files of `source` that are not weights."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name not in {*NOT_COPIED, "config.json"}:
            shutil.copyfile(path, target / path.name)
    final, first = read_final_basis(solutions), read_bases(solutions[0]).attention
    dense = json.loads((source / "config.json").read_text(encoding="utf-8"))
    copy_code(CLASSES[dense["model_type"]][1], target)
    config, width = model.config, first.shape[1]
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tied = bool(config.tie_word_embeddings) and final is None
    values = sliced_values(dense, heads, width, None if final is None else width, tied)
    (target / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    state = build_skeleton(target, model.weights.dtype, False).state_dict()
    layout = {name: (model.weights.dtype, tuple(value.shape)) for name, value in state.items()}
    if tied:
        del layout["lm_head.weight"]
    outside = {
        "model.embed_tokens.weight": lambda: _embeddings(model, None if tied else first.double()),
        "model.norm.weight": lambda: model.weights.stored_parameter("model.norm.weight"),
        "lm_head.weight": lambda: _head(model, final),
    }
    at, block = -1, dict[str, Tensor]()
    size = sum(kind.itemsize * prod(shape) for kind, shape in layout.values())
    with (
        TensorWriter(target / SINGLE, layout, {"format": "pt"}) as writer,
        progress(total=size, desc="write", unit="B", unit_scale=True) as bar,
    ):
        for name in layout:
            index = int(name.removeprefix(f"{model.prefix}.").split(".")[0]) if name.startswith(model.prefix) else None
            if index is not None and index != at:
                at, block = index, _block(model, index, solutions, final, tied)
            value = (outside[name]() if index is None else block[name]).to(model.weights.dtype)
            writer.write(name, value)
            bar.update(value.nbytes)


def _block(
    model: StreamedModel, index: int, solutions: list[Path], final: Tensor | None, tied: bool
) -> dict[str, Tensor]:
    last = index == model.blocks - 1
    leaving = final if last else read_bases(solutions[index + 1]).attention.double()
    bases = read_bases(solutions[index])
    bases = bases._replace(attention=bases.attention.double(), mlp=bases.mlp.double())
    tensors = sliced_block(model, index, bases, leaving)
    if index == 0 and tied:
        tensors[f"{model.prefix}.0.entering.weight"] = bases.attention.T
    return tensors


def _embeddings(model: StreamedModel, basis: Tensor | None) -> Tensor:
    whole = model.weights.stored_parameter("model.embed_tokens.weight")
    return whole if basis is None else whole.double() @ basis


def _head(model: StreamedModel, basis: Tensor | None) -> Tensor:
    tied = bool(model.config.tie_word_embeddings)
    whole = model.weights.stored_parameter("model.embed_tokens.weight" if tied else "lm_head.weight")
    if basis is None:
        return whole
    return (whole.double() * model.weights.stored_parameter("model.norm.weight").double()) @ basis


def sliced_facts(folder: Path, model: StreamedModel, solve: Mapping[str, Any]) -> dict[str, Any]:
    """For the manifest: layout, the lines that load it, parameters with and without embeddings and head, units a block.

    solve: the section that the solution was made by.
    """
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    plain = "AutoModelForCausalLM.from_pretrained(folder)"
    counts = {"dense": _parameters(model.checkpoint.folder), "pruned": _parameters(folder)}
    ends = {"dense": counts["dense"] - model.weights.block_parameter_count, "pruned": _parameters(folder, outside=True)}
    inside = {name: counts[name] - ends[name] for name in counts}
    units = [{kind.kind: kind.count for kind in units_of(model, index)} for index in range(model.blocks)]
    layout = {
        "name": LAYOUT,
        "class": values["architectures"][0],
        "load": [f"import secateur; {plain}", f"{plain[:-1]}, trust_remote_code=True)"],
        "width": values["sliced_width"],
        "final_width": values["final_width"],
        "parameters": counts,
        "block_parameters": inside,
        "heads_removed": False,
        "blocks": [counts | {f"{kind}_dense": count for kind, count in counts.items()} for counts in units],
    }
    removed = 1 - inside["pruned"] / inside["dense"]
    return {"layout": layout, "budget": {"asked": solve["sparsity"], "removed": removed, "unit_parameters": inside}}


def _parameters(folder: Path, outside: bool = False) -> int:
    """Parameters of a checkpoint; outside: of those that are in no block."""
    files = sorted(set(Checkpoint(folder).files.values()))
    spans = {name: span for file in files for name, span in TensorFile(folder / file).spans.items()}
    return sum(prod(span.shape) for name, span in spans.items() if not (outside and ".layers." in name))
