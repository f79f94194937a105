"""Errors of attention matrices as rows of errors.parquet, and the few figures of metrics/attention.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from stages.artifacts.attention import errors_by_block
from stages.artifacts.table import Row
from stages.measuring.attention.errors import BlockErrors, block_errors
from stages.models.streaming.streamed import StreamedModel
from stages.runtime.progress import progress


def error_rows(dense: StreamedModel, pruned: StreamedModel, texts: Mapping[str, Tensor], chunk: int) -> list[Row]:
    """A row a text, inputs (dense or own), block and head; see `block_errors`."""
    rows = list[Row]()
    blocks = progress(block_errors(dense, pruned, texts, chunk), total=dense.blocks, desc="compare", unit="block")
    for block, by_text in enumerate(blocks):
        for text, errors in by_text.items():
            rows += _rows_of_block(text, block, errors)
    return sorted(rows, key=lambda row: (row["text"], row["inputs"], row["block"], row["head"]))


def _rows_of_block(text: str, block: int, of_block: BlockErrors) -> Iterator[Row]:
    for inputs, errors in (("dense", of_block.dense), ("own", of_block.own)):
        by_head = zip(errors.relative.tolist(), errors.energy.tolist(), errors.least.tolist(), strict=True)
        for head, (relative, energy, least) in enumerate(by_head):
            yield {
                "text": text,
                "inputs": inputs,
                "block": block,
                "head": head,
                "relative_error": relative,
                "energy": energy,
                "least_probability": least,
                "smallest_eigenvalue": of_block.smallest_eigenvalue,
            }


def attention_figures(rows: list[Row]) -> dict[str, Any]:
    """By text and inputs the relative error of a block's heads together: its mean, last and worst block, and δ.

    For each text also the lowest and the highest β of a block.
    """
    figures = dict[str, Any]()
    for (text, inputs), by_block in errors_by_block(rows).items():
        part = [row for row in rows if (row["text"], row["inputs"]) == (text, inputs)]
        errors = list(by_block.values())
        betas = [row["smallest_eigenvalue"] for row in part]
        of_text = figures.setdefault(text, {"smallest_eigenvalue": {"lowest": min(betas), "highest": max(betas)}})
        of_text[inputs] = {
            "mean": sum(errors) / len(errors),
            "last": errors[-1],
            "worst": max(errors),
            "worst_block": errors.index(max(errors)),
            "least_probability": min(row["least_probability"] for row in part),
        }
    return figures
