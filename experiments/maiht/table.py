"""Perplexity of the paper's methods at 10 to 50 % (Wen et al., Table 1), on the project's model and texts.

Writes results/table.json and results/table.md; run in this folder. Minutes for each of the runs; a run that is
stopped goes on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from stages.params.yamlfile import read_yaml

RESULTS = Path("results")
BENCHMARK = Path("../../benchmarks/quality.py")


def main() -> None:
    """Measure every pair of method and sparsity, write the table."""
    settings = read_yaml(Path("params.yaml"))["table"]
    RESULTS.mkdir(exist_ok=True)
    runs = runs_of(settings)
    command = [sys.executable, str(BENCHMARK), str(RESULTS / "workspace"), "--json", str(RESULTS / "table.json")]
    command += [f"--{name}={settings[name]}" for name in ("sequences", "windows", "threads")]
    subprocess.run([*command, *(part for run in runs.values() for part in ("--run", run))], check=True)
    found = json.loads((RESULTS / "table.json").read_text(encoding="utf-8"))
    text = table(settings, runs, found)
    (RESULTS / "table.md").write_text(text, encoding="utf-8")
    print(text)


def runs_of(settings: dict[str, Any]) -> dict[tuple[str, float], str]:
    """The benchmark's run of every pair of method and sparsity."""
    return {
        (method, sparsity): f"{method} {sparsity} {settings['settings']}".strip()
        for method in settings["methods"]
        for sparsity in settings["sparsities"]
    }


def table(settings: dict[str, Any], runs: dict[tuple[str, float], str], found: dict[str, list[dict[str, Any]]]) -> str:
    """Methods down, sparsities across, the lowest of a column in bold."""
    sparsities = settings["sparsities"]
    perplexity = {pair: found[run][0]["perplexity"] for pair, run in runs.items()}
    best = {sparsity: min(value for (_, at), value in perplexity.items() if at == sparsity) for sparsity in sparsities}
    lines = [f"| | {' | '.join(f'{one:.0%}' for one in sparsities)} |", f"|{'---|' * (len(sparsities) + 1)}"]
    lines.append(f"| dense | {' | '.join([format(found['dense'][0]['perplexity'], '.2f')] * len(sparsities))} |")
    for method in settings["methods"]:
        values = [(perplexity[method, at], best[at]) for at in sparsities]
        cells = [f"**{value:.2f}**" if value == least else f"{value:.2f}" for value, least in values]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
