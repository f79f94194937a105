"""A small DVC project whose stages take no time, and what a Prefect server knows of flows."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from stages.params.yamlfile import yaml_text
from tests.helpers.committed import ROOT, Project, outcomes_in
from tests.helpers.forks.start import forked

STAGE = """
import json, pathlib, sys, time
from ruamel.yaml import YAML
name, needs = sys.argv[1], sys.argv[2:]
params = YAML(typ="safe").load(open("params.yaml"))[name]
with open(params["log"] if "log" in params else "/dev/null", "a") as log:
    log.write(name + "\\n")
if params.get("fails"):
    print(f"{name}: error: {name}.fails: expected false, got true: set it to false", file=sys.stderr)
    sys.exit(2)
if params.get("unreachable"):
    print(f"{name}: network error: the hub did not answer: try later", file=sys.stderr)
    sys.exit(2)
pathlib.Path(f"data/{name}.started").write_text("")
time.sleep(params.get("seconds", 0))
seen = [json.load(open(f"data/{need}.json")) for need in needs]
pathlib.Path("data").mkdir(exist_ok=True)
json.dump({"value": params["value"], "seen": seen}, open(f"data/{name}.json", "w"))
"""
METRICS = """
import json, pathlib
found = json.load(open("data/solve.json"))
pathlib.Path("metrics/cost").mkdir(parents=True, exist_ok=True)
for model, value in (("dense", 20.0), ("pruned", 20.0 + 100 * found["value"])):
    json.dump({"perplexity": {"value": value}, "tasks": {"topics": {"acc": 0.5}}}, open(f"metrics/{model}.json", "w"))
json.dump({"seconds": 1.5}, open("metrics/cost/solve.json", "w"))
"""


class Toy(Project):
    """A project of three stages: extract, solve (needs extract), report (writes metrics)."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, environment)
        self.environment["PYTHONPATH"] = str(ROOT)
        (folder / "data").mkdir()
        self.runs = folder.parent / f"{folder.name}.log"
        (folder / "stage.py").write_text(STAGE)
        (folder / "metrics.py").write_text(METRICS)
        stages = {
            "extract": {"cmd": "python stage.py extract", "params": ["extract"], "outs": ["data/extract.json"]},
            "solve": {
                "cmd": "python stage.py solve extract", "params": ["solve"], "deps": ["data/extract.json"],
                "outs": ["data/solve.json"],
            },
            "report": {
                "cmd": "python metrics.py", "deps": ["data/solve.json"],
                "metrics": ["metrics/dense.json", "metrics/pruned.json", "metrics/cost/solve.json"],
            },
        }  # fmt: skip
        (folder / "dvc.yaml").write_text(yaml_text({"stages": stages}))
        (folder / ".gitignore").write_text(".cache/\n/sweeps\n/data/*.started\n")
        (folder / "params.yaml").write_text("{}\n")
        self.change(extract={"value": 1, "log": str(self.runs)}, solve={"value": 0.5, "log": str(self.runs)})
        self.sh("git", "init", "--quiet")
        self.sh("dvc", "init", "--quiet")
        self.commit("toy")

    def outcomes(self, *arguments: str) -> dict[str, str]:
        """The outcome of each stage of a run of the pipeline."""
        return outcomes_in(self.flow("pipeline", *arguments))

    def ran(self) -> list[str]:
        """Stages that ran since this was asked last, in order."""
        lines = self.runs.read_text().splitlines() if self.runs.exists() else []
        self.runs.unlink(missing_ok=True)
        return lines


@pytest.fixture
def toy(tmp_path, flow_forks, server) -> Toy:
    folder = tmp_path / "toy"
    folder.mkdir()
    return Toy(folder, forked(flow_forks, server))


def asked(project: Project, path: str, body: dict[str, Any]) -> Any:
    """What the project's Prefect server answers."""
    request = urllib.request.Request(
        project.environment["PREFECT_API_URL"] + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def runs_of(project: Project, name: str) -> list[tuple[str, bool]]:
    """State of the runs of the deployment with this name, and whether its schedule made them."""
    found = asked(project, "/flow_runs/filter", {"deployments": {"name": {"any_": [name]}}})
    return [(run["state_type"], run["auto_scheduled"]) for run in found]
