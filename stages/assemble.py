"""A Hugging Face checkpoint with the pruned weights -> data/pruned.

Plain AutoModelForCausalLM loads it. Beside it: masks.safetensors (packed bits) and
pruning_manifest.json (method, parameters, sources, sparsity of every tensor). It is loaded again and
compared before it is published.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from stages import __version__
from stages.artifacts.atomic import write_json
from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import read_manifest, sha256_of, verified
from stages.artifacts.places import MODEL, PRUNED, PRUNING_MANIFEST, SOLUTION, TEXTS, block_file
from stages.artifacts.table import Row
from stages.artifacts.tokens import read_tokens
from stages.assembly.checkpoint import budget_facts, bytes_of, layout_facts, layout_of, write_checkpoint, write_masks
from stages.assembly.sliced import assemble_sliced
from stages.assembly.verify import compare_fresh, compare_masked
from stages.models.streaming.coverage import Coverage, coverage_of
from stages.params import Assemble
from stages.runtime.disk import need_disk
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model, same_model
from stages.walk.bases import LAYOUT as SLICED
from stages.walk.pruned import Pruned

SECTIONS = ("compute", "assemble")
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")


def main(run: StageRun) -> None:
    """Write the checkpoint, its masks and its manifest, checked by loading it."""
    model, identity = open_model(run.params.compute)
    solution = read_manifest(SOLUTION)
    same_model(solution, identity, SOLUTION)
    rows = {row["linear"]: row for row in LINEARS.read(verified(SOLUTION, LINEARS.name, solution))}
    solutions = [verified(SOLUTION, block_file(index), solution) for index in range(model.blocks)]
    source = read_manifest(MODEL)
    size = sum((MODEL / name).stat().st_size for name in source["files"])
    need_disk(PRUNED, size, "the pruned checkpoint", f"free some, or put {PRUNED.parent} on another disk")
    tokens = read_tokens(TEXTS, "calibration", read_manifest(TEXTS))
    trust = bool(source.get("source", {}).get("trust_remote_code", False))

    with run.output(PRUNED) as folder:
        if solution.get("layout") == SLICED:
            told = assemble_sliced(model, solutions, folder, tokens, run.params.assemble, solution["solve"])
        else:
            pruned = Pruned(model, solutions, rows)
            told = _assemble(pruned, folder, tokens, run.params.assemble, solution["solve"], trust)
        facts = {
            **_facts(solution, source, rows, coverage_of(model)),
            **told,
            "versions": {"secateur": __version__, **{package: version(package) for package in PACKAGES}},
            "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()},
        }
        write_json(folder / PRUNING_MANIFEST.name, facts)


def _assemble(
    pruned: Pruned,
    folder: Path,
    tokens: Tensor,
    settings: Assemble,
    solve: dict[str, Any],
    trust: bool,
) -> dict[str, Any]:
    """Write the dense model's tensors with the pruned weights, in a layout; gives the facts of it."""
    layout = layout_of(pruned, settings.layout, trust)
    with progress(total=bytes_of(MODEL, layout), desc="write", unit="B", unit_scale=True) as bar:
        write_checkpoint(MODEL, folder, pruned, layout, bar.update)
    write_masks(folder, pruned)
    check = compare_masked if layout.values is None else partial(compare_fresh, layout=layout)
    reloaded = check(folder, pruned, tokens, settings.max_logit_difference, trust)
    budget = {} if layout.values is None else {"budget": budget_facts(pruned, solve)}
    return {"layout": layout_facts(pruned, layout), **budget, "reloaded": reloaded}


def _facts(
    solution: dict[str, Any], source: dict[str, Any], rows: dict[str, Row], coverage: Coverage
) -> dict[str, Any]:
    """What was pruned, of what: `sparsity` is of all weights of the blocks, `linears` of those that linears cover."""
    weights, kept = (sum(row[column] for row in rows.values()) for column in ("weights", "kept"))
    told = ("role", "method", "pattern", "weights", "kept", "sparsity", "relative_error", "damping", "attempts")
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
        "tensors": {f"{name}.weight": {key: row[key] for key in told} for name, row in rows.items()},
    }


if __name__ == "__main__":
    parser_of("assemble", __doc__).parse_args()
    sys.exit(run_stage("assemble", main, SECTIONS))
