"""A sweep runs what is shared once and goes on where it was stopped; a schedule makes runs of its own."""

from __future__ import annotations

import csv
import json
import sys
import urllib.request

from tests.flows.conftest import wait_for

LISTS = ("--list", "extract.value=1,2", "--sparsity", "0.3,0.6")


def with_sparsity(toy):
    """The toy's solve.value is read from solve.sparsity, which the leaderboard draws."""
    toy.change(solve={"sparsity": 0.5})
    text = (toy.folder / "stage.py").read_text()
    (toy.folder / "stage.py").write_text(text.replace('params["value"]', 'params.get("sparsity", params["value"])'))
    toy.sh("git", "commit", "--quiet", "-am", "sparsity")


def test_a_sweep_runs_shared_stages_once_and_ends_in_a_leaderboard(toy):
    with_sparsity(toy)
    toy.outcomes()
    toy.ran()
    output = toy.flow("sweep", *LISTS)
    assert sorted(toy.ran()) == ["extract", "solve", "solve", "solve", "solve"]  # extract.value=1 was there
    rows = list(csv.DictReader(next(toy.folder.glob("sweeps/*/leaderboard.csv")).open()))
    assert [(row["sparsity"], float(row["perplexity"])) for row in rows] == [
        ("0.3", 50.0), ("0.3", 50.0), ("0.6", 80.0), ("0.6", 80.0),
    ]  # fmt: skip
    assert {row["dense"] for row in rows} == {"20.0"}
    assert "| sparsity |" in output
    page = next(toy.folder.glob("sweeps/*/leaderboard.html")).read_text()
    assert "<svg" in page
    assert "dense" in page
    shown = toy.sh("dvc", "exp", "show", "--csv")
    assert all(row["experiment"] in shown for row in rows)
    toy.flow("sweep", *LISTS)
    assert toy.ran() == []


def test_a_failed_combination_is_told_and_the_others_are_run(toy):
    toy.change(solve={"fails": False})
    output = toy.flow("sweep", "--list", "solve.fails=true,false", code=1)
    assert "1 of 2 runs failed" in output
    rows = list(csv.DictReader(next(toy.folder.glob("sweeps/*/leaderboard.csv")).open()))
    assert [row["perplexity"] for row in rows] == ["70.0", "failed"]
    assert "expected false, got true" in rows[1]["experiment"]


def test_a_sweep_of_nothing_is_refused(toy):
    assert "expected at least one parameter with values" in toy.flow("sweep", code=1)


def runs(toy, name):
    """State and origin of the runs of the deployment with this name."""

    def post(path, body):
        request = urllib.request.Request(
            toy.environment["PREFECT_API_URL"] + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    body = {"deployments": {"name": {"any_": [name]}}}
    return [(run["state_type"], run["auto_scheduled"]) for run in post("/flow_runs/filter", body)]


def test_a_scheduled_run_comes_by_itself_and_completes(toy):
    process = toy.start(sys.executable, "-m", "flows.serve", "--interval", "10", "--name", "often", "solve.value=0.8")
    try:
        wait_for(lambda: ("COMPLETED", True) in runs(toy, "often"), 120)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert "value-0.8" in toy.sh("dvc", "exp", "show", "--csv")


def test_a_schedule_without_a_server_is_refused(toy):
    toy.environment = {**toy.environment, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    output = toy.flow("serve", "--cron", "0 2 * * *", code=1)
    assert "no Prefect server answers at http://127.0.0.1:9/api" in output
    assert "Traceback" not in output


def test_prefect_yaml_deploys_and_a_worker_runs_it(toy):
    from tests.flows.conftest import ROOT

    (toy.folder / "prefect.yaml").write_text((ROOT / "prefect.yaml").read_text())
    (toy.folder / "flows").symlink_to(ROOT / "flows")
    prefect = [sys.executable, "-m", "prefect"]
    toy.sh(*prefect, "work-pool", "create", "local", "--type", "process")
    toy.sh(*prefect, "--no-prompt", "deploy", "--all")
    toy.sh(*prefect, "deployment", "run", "pipeline/nightly")
    output = toy.sh(*prefect, "worker", "start", "--pool", "local", "--run-once", "--type", "process")
    assert ("COMPLETED", False) in runs(toy, "nightly"), output
    assert json.loads((toy.folder / "data/solve.json").read_text())["value"] == 0.5
