"""The report's figures as CSV, a row a mark, for `dvc plots show` and `dvc plots diff`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stages.artifacts.attention import errors_by_block
from stages.reporting.attention_figures import curve_name
from stages.reporting.images import FIGURES
from stages.reporting.results import MODELS, Results
from stages.reporting.speed import speed_rows
from stages.reporting.structure import unit_rows


def write_plots(folder: Path, results: Results) -> None:
    """Write a CSV file a plot of dvc.yaml, without rows where there is nothing to draw."""
    folder.mkdir()
    _write(folder / "error_by_block.csv", ("block", "role", "relative_error", "linear"), results.rows)
    columns = ("block", "role", "sparsity", "weights", "kept", "linear")
    _write(folder / "sparsity_by_linear.csv", columns, results.rows)
    lines = (
        {"block": block, "curve": curve_name(*curve), "relative_error": error}
        for curve, errors in errors_by_block(results.attention_rows).items()
        for block, error in errors.items()
    )
    _write(folder / "attention_by_block.csv", ("block", "curve", "relative_error"), lines)
    units = unit_rows(results.manifest.get("layout"))
    _write(folder / "units_by_block.csv", ("block", "curve", "kept_fraction", "kept", "dense"), units)
    running = speed_rows(results.speed)
    _write(folder / "speed.csv", ("figure", "ratio", "lowest", "highest", "dense", "pruned"), running)
    values = ({"model": model, "perplexity": results.metrics[model]["perplexity"]["value"]} for model in MODELS)
    _write(folder / "perplexity.csv", ("model", "perplexity"), values)
    _write(folder / "images.csv", ("model", *(key for key, *_ in FIGURES)), _sampled(results.metrics))


def _sampled(metrics: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """A row a model: the figures of its samples, where FID was measured of both."""
    found = {model: metrics[model].get("images") or {} for model in MODELS}
    measured = all(images.get("fid") is not None for images in found.values())
    return [{"model": model, **images} for model, images in found.items()] if measured else []


def _write(path: Path, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
