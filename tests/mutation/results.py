"""The committed file of the last run, tests/mutation/results.json, and what it says in a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutation.mutants import ROOMS, Mutant

RESULTS = Path(__file__).with_name("results.json")
FIELDS = ("path", "line", "operator", "occurrence", "before", "after")


def read(path: Path = RESULTS) -> dict[str, Any]:
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def write(results: dict[str, Any], path: Path = RESULTS) -> None:
    """One line a mutant, so that a diff shows which have changed."""
    head = json.dumps({name: value for name, value in results.items() if name != "mutants"}, indent=1)
    rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in results["mutants"])
    path.write_text(f'{head[:-2]},\n "mutants": [\n{rows}\n ]\n}}\n')


def mutant_of(row: dict[str, Any]) -> Mutant:
    return Mutant(**{name: row[name] for name in FIELDS})


def survivors(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in results["mutants"] if row["killed_by"] == ""]


def _counts(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Sampled, killed at first, killed now, survivors that change no result."""
    killed = sum(bool(row["killed_by"]) for row in rows)
    added = sum(bool(row["killed_by"]) and bool(row.get("survived_at_first")) for row in rows)
    harmless = sum(row["killed_by"] == "" and row.get("verdict", "").startswith("equivalent") for row in rows)
    return [len(rows), killed - added, killed, harmless]


def table(results: dict[str, Any]) -> str:
    """Markdown: mutants by room, then every survivor with its verdict."""
    lines = ["| room | sampled | killed at first | killed now | equivalent | killed, of those that matter |"]
    lines += ["|---|---|---|---|---|---|"]
    for room in (*ROOMS, "all"):
        counts = _counts([row for row in results["mutants"] if room in ("all", mutant_of(row).room)])
        share = counts[2] / max(counts[0] - counts[3], 1)
        lines.append(f"| {room} | {' | '.join(map(str, counts))} | {share:.1%} |")
    lines += ["", "| survivor | verdict |", "|---|---|"]
    for row in survivors(results):
        change = f"`{row['path'].removeprefix('stages/')}` `{row['after']}`".replace("|", "\\|")
        lines.append(f"| {change} | {row.get('verdict', 'not judged')} |")
    return "\n".join(lines)
