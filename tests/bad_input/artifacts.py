"""What a stage finds in data/ and metrics/: missing, corrupt, of another model, of another run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stages.artifacts.manifest import write_manifest
from tests.bad_input.case import (
    Case,
    Change,
    bad,
    both,
    cut,
    edit,
    edit_json,
    flip,
    fresh,
    good,
    nothing,
    remove,
    write,
)

BLOCK = "block_001.safetensors"
STORE = remove(".cache/blocks")
READERS = {
    "extract": ("data/model", "data/texts"),
    "statistics": ("data/model", "data/activations"),
    "solve": ("data/model", "data/statistics"),
    "assemble": ("data/model", "data/solution", "data/texts"),
    "compare_attention": ("data/model", "data/texts"),
    "evaluate dense": ("data/model", "data/texts"),
    "evaluate pruned": ("data/texts",),
    "report": ("data/solution", "data/attention", "data/speed"),
}
"""By stage, folders with a manifest.json that it reads."""
WRITERS = {
    "data/model": "fetch", "data/texts": "fetch", "data/activations": "extract", "data/statistics": "statistics",
    "data/solution": "solve", "data/attention": "compare_attention", "data/speed": "measure_speed",
}  # fmt: skip
REPAIR = r"dvc (repro|checkout)"


def missing(stage: str, path: str, change: Change | None = None) -> Case:
    """A file that the stage needs is not there."""
    return bad(f"{stage} without {path}", f"stages.{stage}", change or remove(path), rf"{path}\S* is missing", REPAIR)


def corrupt(stage: str, path: str, change: Change) -> Case:
    """A file that the stage needs is not what was written."""
    return bad(f"{stage} with a corrupt {path}", f"stages.{stage}", (STORE, change), rf"{path} is corrupt", REPAIR)


def another_model(folder: Path) -> None:
    """Fetch would have written another model."""
    from safetensors.torch import load_file, save_file

    path = folder / "data/model/model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"].add_(1)
    save_file(tensors, fresh(path), {"format": "pt"})
    write_manifest(folder / "data/model", {"source": {}})


def other_rows(folder: Path) -> None:
    """A table of linears that another version wrote, listed in the manifest as it is."""
    _other_table(folder, "data/solution", "linears.parquet")


def other_errors(folder: Path) -> None:
    """A table of attention errors that another version wrote."""
    _other_table(folder, "data/attention", "errors.parquet")


def _other_table(folder: Path, output: str, name: str) -> None:
    manifest = json.loads((folder / output / "manifest.json").read_text(encoding="utf-8"))
    pq.write_table(pa.table({"linear": ["a"]}), fresh(folder / output / name))
    write_manifest(folder / output, {key: value for key, value in manifest.items() if key != "files"})


CASES = [
    *(missing(stage, folder) for stage, folders in READERS.items() for folder in folders),
    missing("evaluate pruned", "data/pruned"),
    missing("compare_attention", "data/pruned"),
    missing("measure_speed", "data/pruned"),
    missing("report", "metrics/dense.json"),
    missing("report", "metrics/pruned.json"),
    missing("report", "data/evaluation/dense"),
    missing("report --show", "data/report"),
    missing("assemble", "data/solution/linears.parquet"),
    missing("statistics", f"data/activations/{BLOCK}", both(STORE, remove(f"data/activations/{BLOCK}"))),
    corrupt("extract", "data/model/model.safetensors", flip("data/model/model.safetensors")),
    corrupt("extract", "data/texts/calibration.parquet", flip("data/texts/calibration.parquet")),
    corrupt("extract", "data/model/config.json", write("data/model/config.json", "{}")),
    corrupt("extract", "data/texts/manifest.json", cut("data/texts/manifest.json")),
    corrupt("statistics", f"data/activations/{BLOCK}", flip(f"data/activations/{BLOCK}")),
    corrupt("statistics", "data/activations/manifest.json", write("data/activations/manifest.json", "")),
    corrupt("solve", f"data/statistics/{BLOCK}", both(flip(f"data/statistics/{BLOCK}"),
        edit("  rules: []", "  inputs: dense"))),
    corrupt("solve", "data/statistics/manifest.json", write("data/statistics/manifest.json", b"\xff\xfe")),
    corrupt("solve", "data/activations/block_000.safetensors", flip("data/activations/block_000.safetensors")),
    corrupt("assemble", f"data/solution/{BLOCK}", cut(f"data/solution/{BLOCK}")),
    corrupt("assemble", "data/solution/linears.parquet", write("data/solution/linears.parquet", "PAR1")),
    corrupt("evaluate pruned", "data/pruned/model.safetensors", flip("data/pruned/model.safetensors")),
    corrupt("evaluate pruned", "data/pruned/pruning_manifest.json", cut("data/pruned/pruning_manifest.json")),
    corrupt("evaluate dense", "data/texts/evaluation.parquet", flip("data/texts/evaluation.parquet")),
    corrupt("compare_attention", "data/pruned/config.json", write("data/pruned/config.json", "[]")),
    corrupt("report", "data/attention/errors.parquet", flip("data/attention/errors.parquet")),
    corrupt("report", "data/solution/linears.parquet", flip("data/solution/linears.parquet")),
    corrupt("report", "data/evaluation/dense/protocol.json", write("data/evaluation/dense/protocol.json", "[")),
    corrupt("report --show", "data/report/summary.json", cut("data/report/summary.json")),
    bad("a corrupt metric does not cost all of them", "stages.report", write("metrics/dense.json", "{"),
        r"metrics/dense\.json is corrupt", r"^(?!.*delete its folder).*$", "dvc (repro|checkout)|run the stage"),
    bad("a metric that is a list", "stages.report", write("metrics/pruned.json", "[]"), r"metrics/pruned\.json"),
    bad("a metric that lacks its figures", "stages.report", write("metrics/pruned.json", "{}"),
        r"metrics/pruned\.json"),
    bad("a protocol that lacks everything", "stages.report", write("data/evaluation/pruned/protocol.json",
        "{}"), r"data/evaluation/pruned/protocol\.json"),
    bad("a summary of another version", "stages.report --show", write("data/report/summary.json", "{}"),
        r"data/report/summary\.json"),
    bad("a pruning manifest that lacks everything", "stages.compare_attention",
        write("data/pruned/pruning_manifest.json", "{}"), r"data/pruned/pruning_manifest\.json"),
    bad("a table of errors of another version", "stages.report", other_errors,
        r"data/attention/errors\.parquet", REPAIR),
    bad("a cost that is corrupt", "stages.report", write("metrics/cost/solve.json", "{"),
        r"metrics/cost/solve\.json is corrupt"),
    bad("a manifest that is a list", "stages.statistics", write("data/activations/manifest.json", "[]"),
        r"data/activations/manifest\.json", REPAIR),
    bad("a manifest without files", "stages.statistics", write("data/activations/manifest.json", '{"model": "a"}'),
        r"data/activations", REPAIR),
    bad("a manifest that lists less", "stages.assemble", edit_json("data/solution/manifest.json", files={}),
        r"data/solution/manifest\.json does not list", REPAIR),
    bad("a table of another version", "stages.assemble", other_rows, r"data/solution", REPAIR),
    bad("activations of another model", "stages.statistics", another_model,
        r"data/activations was made from another model than data/model holds now: run `dvc repro`"),
    bad("statistics of another model", "stages.solve", another_model,
        r"data/statistics was made from another model than data/model holds now: run `dvc repro`"),
    bad("a solution of another model", "stages.assemble", another_model,
        r"data/solution was made from another model than data/model holds now: run `dvc repro`"),
    bad("a pruned model of another model", "stages.compare_attention", another_model,
        r"data/pruned was made from another model than data/model holds now: run `dvc repro`"),
    bad("figures of two protocols", "stages.report", edit_json("data/evaluation/dense/protocol.json", perplexity="a"),
        r"the perplexity of the two models was measured in two ways", "run `dvc repro`"),
    bad("attention of another pruned model", "stages.report", edit_json("data/attention/manifest.json", pruned="0"),
        r"data/attention belongs to another pruned model than data/pruned holds now: run `dvc repro`"),
    bad("a folder where a file is due", "stages.solve", (remove("data/statistics/manifest.json"),
        write("data/statistics/manifest.json/a", "")), r"data/statistics/manifest\.json"),
    bad("a file where the block store is due", "stages.statistics", (remove(".cache"), write(".cache", "a note")),
        r"\.cache"),
    good("a corrupt block store", "stages.statistics", lambda folder: [
        fresh(path).touch() for path in (folder / ".cache/blocks").glob("*/*.safetensors")]),
    good("the last result in short", "stages.report --show", nothing),
    good("the list of methods", "stages.solve --list", nothing),
]  # fmt: skip
