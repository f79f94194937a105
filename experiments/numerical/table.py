"""Perplexity of structured methods at 10 to 50 % (Shen et al., Tables 1 and 4), on the project's model and texts.

Writes results/table.json, table.md and table.png; run in this folder. Under a minute for each of the runs; a run that
is stopped goes on where it was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from measured import RESULTS, measured

from stages.params.yamlfile import read_yaml

SHORT, LONG = "short", "perplexity"


def main() -> None:
    """Measure every pair of method and sparsity, write tables and figure."""
    settings = read_yaml(Path("params.yaml"))["table"]
    runs = runs_of(settings)
    options = {name: settings[name] for name in ("short", "sequences", "windows", "threads")}
    whole = [run for (name, _), run in runs.items() if name in settings["assembled"]]
    found = measured([run for run in runs.values() if run not in whole], "workspace", **options)
    found |= measured(whole, "workspace", assembled=True, **options) if whole else {}
    (RESULTS / "table.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = summary(settings, found)
    (RESULTS / "table.md").write_text(text, encoding="utf-8")
    draw(settings, values_of(settings, found))
    print(text)


def runs_of(settings: dict[str, Any]) -> dict[tuple[str, float], str]:
    """The benchmark's run of every pair of method and sparsity that is to be measured."""
    return {
        (name, sparsity): " ".join([run.split()[0], str(sparsity), *run.split()[1:]])
        for name, run in settings["methods"].items()
        for sparsity in settings["sparsities"]
        if sparsity <= settings["until"].get(name, 1)
    }


def values_of(settings: dict[str, Any], found: dict[str, Any]) -> dict[tuple[str, float], dict[str, Any]]:
    """Figures of every pair, and of the dense model at 0."""
    return {pair: found[run][0] for pair, run in runs_of(settings).items()} | {("dense", 0.0): found["dense"][0]}


def summary(settings: dict[str, Any], found: dict[str, Any]) -> str:
    """Markdown: both tables."""
    values = values_of(settings, found)
    text = f"Windows of 512 tokens.\n\n{table(settings, values, LONG)}\n"
    return text + f"Windows of {settings['short']} tokens.\n\n{table(settings, values, SHORT)}"


def table(settings: dict[str, Any], values: dict[tuple[str, float], dict[str, Any]], which: str) -> str:
    """Methods down, sparsities across, the lowest of a column in bold."""
    sparsities = settings["sparsities"]
    found = {pair: value[which] for pair, value in values.items()}
    best = {at: min(found[name, at] for name in settings["methods"] if (name, at) in found) for at in sparsities}
    lines = [f"| | {' | '.join(f'{one:.0%}' for one in sparsities)} |", f"|{'---|' * (len(sparsities) + 1)}"]
    lines.append(f"| dense | {' | '.join([format(found['dense', 0.0], '.2f')] * len(sparsities))} |")
    for name in settings["methods"]:
        shown = [format(found[name, at], ".2f") if (name, at) in found else "not measured" for at in sparsities]
        cells = [f"**{cell}**" if found.get((name, at)) == best[at] else cell
                 for cell, at in zip(shown, sparsities, strict=True)]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(settings: dict[str, Any], values: dict[tuple[str, float], dict[str, Any]]) -> None:
    """A line a method over the sparsities, from the dense model on."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in settings["methods"]:
        at = [one for one in settings["sparsities"] if (name, one) in values]
        points = [values["dense", 0.0][LONG], *(values[name, one][LONG] for one in at)]
        axes.plot([0, *at], points, marker="o", markersize=3, label=name)
    axes.set(yscale="log", xlabel="fraction of the blocks' parameters removed", ylabel="perplexity")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(RESULTS / "table.png", dpi=150)


if __name__ == "__main__":
    main()
