"""A Hugging Face checkpoint with the pruned weights -> data/pruned.

Plain AutoModelForCausalLM loads it. Beside it: masks.safetensors (packed bits) and
pruning_manifest.json (method, parameters, sources, sparsity of every tensor). It is loaded again and
compared before it is published.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from stages import __version__
from stages.artifacts.atomic import write_json
from stages.artifacts.linears import LINEARS
from stages.artifacts.manifest import hashes_of, read_manifest, trusts_code, verified
from stages.artifacts.places import MODEL, PRUNED, PRUNING_MANIFEST, SOLUTION, TEXTS, block_file
from stages.artifacts.tokens import read_tokens
from stages.assembly.facts import pruning_facts
from stages.assembly.masked import assemble_masked
from stages.assembly.sliced import assemble_sliced
from stages.models.streaming.coverage import coverage_of
from stages.runtime.disk import need_disk
from stages.runtime.stage import StageRun, parser_of, run_stage
from stages.runtime.workspace import open_model, same_model
from stages.walk.bases import LAYOUT as SLICED
from stages.walk.pruned import Pruned

SECTIONS = ("compute", "assemble")
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")


def main(run: StageRun) -> None:
    """Write the checkpoint, its masks and its manifest, checked by loading it."""
    model, identity = open_model(run.params.compute)
    source, solution = read_manifest(MODEL), read_manifest(SOLUTION)
    same_model(solution, identity, SOLUTION)
    rows = {row["linear"]: row for row in LINEARS.read(verified(SOLUTION, LINEARS.name, solution))}
    blocks = [verified(SOLUTION, block_file(index), solution) for index in range(model.blocks)]
    size = sum((MODEL / name).stat().st_size for name in source["files"])
    need_disk(PRUNED, size, "the pruned checkpoint", f"free some, or put {PRUNED.parent} on another disk")
    tokens = read_tokens(TEXTS, "calibration", read_manifest(TEXTS))
    settings, solve = run.params.assemble, solution["solve"]

    with run.output(PRUNED) as folder:
        if solution.get("layout") == SLICED:
            written = assemble_sliced(model, blocks, folder, tokens, settings, solve)
        else:
            written = assemble_masked(Pruned(model, blocks, rows), folder, tokens, settings, solve, trusts_code(source))
        facts = {
            **pruning_facts(solution, source, rows, coverage_of(model)),
            **written,
            "versions": {"secateur": __version__, **{package: version(package) for package in PACKAGES}},
            "files": hashes_of(folder),
        }
        write_json(folder / PRUNING_MANIFEST.name, facts)


if __name__ == "__main__":
    parser_of("assemble", __doc__).parse_args()
    sys.exit(run_stage("assemble", main, SECTIONS))
