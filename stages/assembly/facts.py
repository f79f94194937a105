"""Facts for pruning_manifest.json: settings, sources, sparsities, layout, and the units left in each block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.table import Row
from stages.assembly.layout import Layout
from stages.models.streaming.coverage import Coverage
from stages.models.streaming.units import Units, parameters_of, units_of
from stages.walk.pruned import Pruned

COLUMNS = ("role", "method", "pattern", "weights", "kept", "sparsity", "relative_error", "damping", "attempts")
"""Of the table of linears, for every pruned tensor."""


def pruning_facts(
    solution: Mapping[str, Any], source: Mapping[str, Any], rows: Mapping[str, Row], coverage: Coverage
) -> dict[str, Any]:
    """Settings, sources and sparsities: `sparsity` is of all weights of the blocks, `linears` of those linears cover.

    solution, source: manifests of data/solution and data/model; rows: of the table of linears, by linear.
    """
    weights, kept = (sum(row[column] for row in rows.values()) for column in ("weights", "kept"))
    return {
        "format": 1,
        "solve": solution["solve"],
        "settings": solution["settings"],
        "calibration": solution["calibration"],
        "source": {key: value for key, value in source.items() if key != "files"},
        "source_files": source["files"],
        "sparsity": (weights - kept) / coverage.weights,
        "block_weights": coverage.weights,
        "covered": coverage.share,
        "linears": {"sparsity": 1 - kept / weights, "weights": weights, "kept": kept},
        "tensors": {f"{name}.weight": {column: row[column] for column in COLUMNS} for name, row in rows.items()},
    }


def layout_facts(pruned: Pruned, layout: Layout) -> dict[str, Any]:
    """For the manifest: the layout's name and class, the lines that load it, and the heads and channels of each block.

    Which channels are left follows from masks.safetensors.
    """
    loads = ["AutoModelForCausalLM.from_pretrained(folder)"]
    if layout.made_for is not None:
        loads = [f"import secateur; {loads[0]}", f"{loads[0][:-1]}, trust_remote_code=True)"]
    if layout.values is None or layout.parameters is None:
        own = {} if layout.made_for is None else {"class": layout.made_for.__name__, "load": loads}
        return {"name": layout.name, **own}
    model, blocks = pruned.model, list[dict[str, Any]]()
    for kinds in _kept(pruned):
        counts = dict[str, Any]()
        for units, keep in kinds:
            counts |= {units.kind: int(keep.sum()), f"{units.kind}_dense": units.count}
            if units.kind == "heads":
                counts["heads_kept"] = keep.nonzero().flatten().tolist()
        blocks.append(counts)
    dense, inside = model.weights.parameter_count, model.weights.block_parameter_count
    return {
        "name": layout.name,
        "class": layout.values["architectures"][0],
        "load": loads,
        "parameters": {"dense": dense, "pruned": layout.parameters},
        "block_parameters": {"dense": inside, "pruned": inside + layout.parameters - dense},
        "heads_removed": any(block["heads"] < block["heads_dense"] for block in blocks),
        "blocks": blocks,
    }


def budget_facts(pruned: Pruned, solve: Mapping[str, Any]) -> dict[str, Any]:
    """For the manifest: the fraction of the parameters of heads and channels that was to be removed, and that was.

    solve: the section that the solution was made by.
    """
    kinds = [kind for block in _kept(pruned) for kind in block]
    total = parameters_of(units for units, _ in kinds)
    left = sum(int(keep.sum()) * units.parameters for units, keep in kinds)
    return {
        "asked": solve.get("sparsity"),
        "removed": 1 - left / total,
        "unit_parameters": {"dense": total, "pruned": left},
    }


def _kept(pruned: Pruned) -> list[list[tuple[Units, Tensor]]]:
    """For each block its kinds of units, with the mask (units,) bool of those kept."""
    blocks = []
    for index in range(pruned.model.blocks):
        units = pruned.units(index) or {}
        kinds = units_of(pruned.model, index)
        blocks.append([(kind, units.get(kind.kind, torch.ones(kind.count, dtype=torch.bool))) for kind in kinds])
    return blocks
