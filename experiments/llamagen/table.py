"""The paper's Table 3 for a set: methods at every sparsity, means over seeds; and differences between methods.

    python table.py shapes

Reads results/<set>/runs.json, writes results/<set>/table.md; run in this folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import combinations
from statistics import mean, stdev
from typing import Any

from common import Settings, results_of, settings_of
from scipy.stats import t as student

Row = dict[str, Any]
FIGURES = {
    "fid": ("FID ↓", ".2f"), "sfid": ("sFID ↓", ".2f"), "inception_score": ("IS ↑", ".2f"),
    "precision": ("precision ↑", ".1%"), "recall": ("recall ↑", ".1%"), "accuracy": ("classified right ↑", ".1%"),
    "perplexity": ("perplexity of test codes ↓", ".2f"),
}  # fmt: skip
COMPARED = ("fid", "sfid", "perplexity")


def main(name: str) -> None:
    """Write the table."""
    rows = json.loads((results_of(name) / "runs.json").read_text(encoding="utf-8"))
    text = summary(settings_of(name)["prune"], rows)
    (results_of(name) / "table.md").write_text(text, encoding="utf-8")
    print(text)


def chosen(rows: list[Row], method: str, sparsity: float) -> list[Row]:
    """A method's rows at a sparsity, by seed."""
    found = [row for row in rows if (row["method"], row["sparsity"]) == (method, sparsity)]
    return sorted(found, key=lambda row: row["seed"])


def summary(settings: Settings, rows: list[Row]) -> str:
    """Markdown: figures as mean (lowest to highest) over seeds; then differences, seed by seed."""
    lines = [f"| | removed | {' | '.join(label for label, _ in FIGURES.values())} | parameters |"]
    lines.append("|" + "---|" * (len(FIGURES) + 3))
    for method, sparsity in [("dense", 0.0), *((m, s) for s in settings["sparsities"] for m in settings["methods"])]:
        found = chosen(rows, method, sparsity)
        cells = [spread([row[name] for row in found], form) for name, (_, form) in FIGURES.items()]
        size = f"{mean(row['parameters'] for row in found) / 1e6:.3f} M"
        lines.append(f"| {method} | {sparsity:.0%} | {' | '.join(cells)} | {size} |")
    heads = ["difference", "removed", *(FIGURES[name][0] for name in COMPARED)]
    lines += ["", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for sparsity in settings["sparsities"]:
        for first, second in combinations(reversed(list(settings["methods"])), 2):
            pairs = list(zip(chosen(rows, first, sparsity), chosen(rows, second, sparsity), strict=True))
            cells = [interval([one[name] - other[name] for one, other in pairs]) for name in COMPARED]
            lines.append(f"| {first} - {second} | {sparsity:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float], form: str) -> str:
    """Mean, lowest and highest."""
    if len(values) == 1:
        return format(values[0], form)
    return f"{mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def interval(differences: Sequence[float]) -> str:
    """Mean and 95 % interval of the mean, by Student's t."""
    middle = mean(differences)
    if len(differences) == 1:
        return f"{middle:+.2f}"
    half = float(student.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    return f"{middle:+.2f} ({middle - half:+.2f} to {middle + half:+.2f})"


if __name__ == "__main__":
    main(sys.argv[1])
