"""Rows of the table of linears for a sliced model: parameters kept, and the share of energy that slicing loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.artifacts.linears import linear_row
from stages.artifacts.table import Row
from stages.models.streaming.slicing import READERS, WRITERS
from stages.models.streaming.streamed import StreamedModel


def sliced_rows(
    model: StreamedModel, method: str, width: int, lost: Sequence[Mapping[str, float]], head: bool
) -> list[Row]:
    """A row for every linear, and for the matrices on residual connections, which the dense model lacks (`shortcut`).

    Their relative_error is the share of energy lost of the hidden states that a linear reads, or adds to.

    width: kept components. lost: that share for each block's bases, `attention` and `mlp`, and `final` for the last
    block where the states entering the head are sliced too (`head`).
    """
    rows = list[Row]()
    for index in range(model.blocks):
        last = index == model.blocks - 1
        final = width if head or not last else model.width
        entering, between = lost[index]["attention"], lost[index]["mlp"]
        leaving = lost[index].get("final", 0.0) if last else lost[index + 1]["attention"]
        for linear in model.linears(index):
            d_out, d_in = linear.shape
            weights = d_out * d_in
            if linear.role in READERS:
                d_in, error = width, (entering, between)[READERS[linear.role]]
            else:
                d_out, error = ((width, between), (final, leaving))[WRITERS[linear.role]]
            rows.append(_row(linear.name, index, linear.role, method, weights, d_out * d_in, error))
        shortcuts = [("attention_shortcut", width, between), ("mlp_shortcut", final, leaving)]
        if index == 0 and model.config.tie_word_embeddings and not head:
            shortcuts.append(("entering", model.width, entering))
        for name, other, error in shortcuts:
            name = f"{model.prefix}.{index}.{name}"
            rows.append(_row(name, index, "shortcut", method, 0, width * other, error))
    return rows


def _row(name: str, index: int, role: str, method: str, weights: int, kept: int, error: float) -> Row:
    """A linear of which `kept` of `weights` parameters stay; nothing was factorised for it alone."""
    return linear_row(
        name, index, role, method=method, pattern="width", scope="model", weights=weights, kept=kept,
        relative_error=error, attempts=0, refits=True,
    )  # fmt: skip
