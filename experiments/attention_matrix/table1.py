"""Perplexity of a method for q and k beside a method for the MLP (Liang et al., Table 1), on the project's model.

v and o stay dense: the paper's subject is the attention matrix. Writes results/table1.json and results/table1.md;
run in this folder. Minutes for each of the runs; a run that is stopped goes on where it was.
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
DENSE = "dense"


def main() -> None:
    """Measure every pair, write the table."""
    settings = read_yaml(Path("params.yaml"))["table1"]
    RESULTS.mkdir(exist_ok=True)
    runs = runs_of(settings)
    command = [sys.executable, str(BENCHMARK), str(RESULTS / "workspace"), "--json", str(RESULTS / "table1.json")]
    command += [f"--{name}={settings[name]}" for name in ("sequences", "windows", "threads")]
    subprocess.run([*command, *(part for run in runs.values() for part in ("--run", run))], check=True)
    found = json.loads((RESULTS / "table1.json").read_text(encoding="utf-8"))
    text = table(settings, runs, found)
    (RESULTS / "table1.md").write_text(text, encoding="utf-8")
    print(text)


def runs_of(settings: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The benchmark's run of every pair of a method for q and k and one for the MLP."""
    return {
        (attention, mlp): run_of(settings, attention, mlp)
        for attention in (DENSE, *settings["attention"])
        for mlp in (DENSE, *settings["mlp"])
        if (attention, mlp) != (DENSE, DENSE)
    }


def run_of(settings: dict[str, Any], attention: str, mlp: str) -> str:
    """A run of the benchmark: rules that give q and k to one method and the MLP to another."""
    rules = [
        rule(["attention.q", "attention.k"], settings["attention"].get(attention)),
        rule(["attention"], None),
        rule(["mlp"], settings["mlp"].get(mlp)),
    ]
    packed = json.dumps(rules, separators=(",", ":"))
    return f"magnitude {settings['sparsity']} {settings['settings']} rules={packed}"


def rule(roles: list[str], method: list[Any] | None) -> dict[str, Any]:
    """A rule of solve.rules for some roles; without a method the linears stay dense."""
    if method is None:
        return {"roles": roles, "sparsity": 0}
    return {"roles": roles, "method": method[0], "settings": method[1]}


def table(settings: dict[str, Any], runs: dict[tuple[str, str], str], found: dict[str, list[dict[str, Any]]]) -> str:
    """Methods of attention down, of the MLP across, the lowest pruned attention of a column in bold."""
    columns = (DENSE, *settings["mlp"])
    perplexity = {pair: found[run][0]["perplexity"] for pair, run in runs.items()}
    perplexity[DENSE, DENSE] = found[DENSE][0]["perplexity"]
    best = {mlp: min(perplexity[one, mlp] for one in settings["attention"]) for mlp in columns}
    lines = [f"| attention \\ MLP | {' | '.join(columns)} |", f"|{'---|' * (len(columns) + 1)}"]
    for attention in (DENSE, *settings["attention"]):
        values = [perplexity[attention, mlp] for mlp in columns]
        cells = [
            f"**{value:.2f}**" if attention != DENSE and value == best[mlp] else f"{value:.2f}"
            for mlp, value in zip(columns, values, strict=True)
        ]
        lines.append(f"| {attention} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
