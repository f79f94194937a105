"""Every command, YAML block and Python block of README.md, CONTRIBUTING.md and docs/, on a copy of the project.

The copy has a tiny model and made-up texts, a folder name with a space, a shared cache named by a relative path, and
an experiment that is not committed. The commands go in an order in which DVC knows most results already.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from operator import attrgetter

import pytest
from dvc.utils.hydra import apply_overrides

from flows.worktree import run_name
from stages import params
from stages.params.yamlfile import parse_yaml, yaml_text
from tests.flows.conftest import asked, runs_of
from tests.helpers.committed import (
    CHEAP,
    EVERY_STAGE,
    FROM_SOLVE,
    ROOT,
    Project,
    copied,
    merge,
    outcomes_in,
    save_source,
)
from tests.helpers.documented import blocks, commands
from tests.helpers.forks.start import forked
from tests.helpers.waiting import wait_for

SETTINGS = """\
[cache]
    dir = ../../shared cache
['remote "kept"']
    url = ../../kept
"""
EXPERIMENT = {"stages": {"solve": {"cmd": "exit 1", "outs": [{"never.txt": {"cache": False}}]}}}
BEFORE_SOLVE = dict.fromkeys(EVERY_STAGE - FROM_SOLVE, "Skipped")
SPARSER, WANDA = "solve.sparsity=0.6", "solve.method=wanda"

NOT_RUN = {
    "make demo": "`.ci/run` makes the environment, tests/pipeline runs the real model",
    "make test": "it runs this",
    "make install": "`.ci/run` begins with it",
    "make check": "`.ci/run` runs it",
    "make docs": "`.ci/run` runs it",
    "make coverage": "a measurement of the unit tests, minutes",
    "make mutants": "an hour or two; tests/unit/project/test_mutation.py tries its parts",
    "python -m tests.mutation map": "a part of `make mutants`, minutes",
    "python -m tests.mutation run --seconds 600": "a part of `make mutants`, minutes",
    "python -m tests.mutation again tests/unit/linalg": "minutes",
    "python -m tests.mutation show": "tests/unit/project/test_mutation.py compares what it prints with the page",
    "make format": "it rewrites the sources; `make check` tells what it would change",
    "make test-quick": "a part of what runs this",
    "pre-commit install": "it writes into .git; its hooks are compared with `make check`, which `.ci/run` runs",
    "python -m http.server -d site": "Python's own server, until it is stopped",
    "python docs/site/drawings.py": "tests/unit/project/test_docs_site.py compares what it writes",
    "source .venv/bin/activate": "the tests run in that environment",
    "pip install 'secateur[lora]'": "make install has it",
    "pip install 'secateur[dask]'": "make install has it",
    "prefect server start": "the fixture `server` does, at another port",
    "export PREFECT_API_URL=http://127.0.0.1:4200/api": "the fixture `server` does, at another port",
    "prefect server database reset": "these tests' server uses the database",
    "python benchmarks/images.py": "minutes, a measurement; tests/unit/models/test_llamagen_speed.py holds its bar",
    "python benchmarks/orchestration.py FOLDER": "most of a minute, a measurement of what runs here",
    "python -m stages.models.importing.llamagen c2i_XXL_384.pt vq_ds16_c2i.pt llamagen-xxl --image-size 384": (
        "gigabytes of a hub; tests/unit/models/test_llamagen_import.py and tests/bad_input run it on tiny files"
    ),
    "cd experiments/attention_matrix && dvc repro figure2": "minutes",
    "cd experiments/d_gating && dvc repro": "hours",
    "cd experiments/lazy_update && dvc repro": "most of an hour",
    "cd experiments/llamagen && dvc repro": "half an hour; tests/unit/project runs it reduced",
    "cd experiments/maiht && dvc repro": "most of an hour",
    "cd experiments/numerical && dvc repro": "hours",
}
"""Documented commands that no test here runs, and why."""


@pytest.fixture(scope="module")
def project(tmp_path_factory, flow_forks, server) -> Project:
    """The copy after its first `python -m flows.pipeline`, a process of its own; results committed."""
    place = tmp_path_factory.mktemp("documented")
    save_source(place / "source")
    folder = place / "my project"
    folder.mkdir()
    made = copied(folder, forked(flow_forks, server))
    made.change(**CHEAP)
    made.commit("the project")
    (folder / ".dvc/config.local").write_text(SETTINGS)
    (folder / "notes/mine").mkdir(parents=True)
    (folder / "notes/mine/dvc.yaml").write_text(yaml_text(EXPERIMENT))
    assert outcomes_in(made.sh(sys.executable, "-m", "flows.pipeline")) == dict.fromkeys(EVERY_STAGE, "Ran")
    made.sh("git", "add", "dvc.lock")
    made.sh("git", "commit", "--quiet", "-m", "results")
    assert (place / "shared cache/files").is_dir()
    return made


def back(project):
    """Take back what a command changed, as a reader would."""
    project.sh("git", "checkout", "--quiet", ".")
    project.sh("dvc", "checkout", "--force", "--quiet")


def sparsity_and_method(project):
    solve = params.read(project.folder / "params.yaml").solve
    return solve.sparsity, solve.method


def experiments(project):
    """The rows of `dvc exp show`, by name, whose figures DVC could all read."""
    rows = list(csv.DictReader(project.sh("dvc", "exp", "show", "--csv").splitlines()))
    assert not [key for row in rows for key, value in row.items() if value == "!"]
    return {row["Experiment"]: row for row in rows}


def nothing_runs(project, output):
    assert "Running stage" not in output
    assert "up to date" in output


def all_are_skipped(project, output):
    assert outcomes_in(output) == dict.fromkeys(EVERY_STAGE, "Skipped")


def solve_is_skipped(project, output):
    assert outcomes_in(output) == {"solve": "Skipped"}


def it_ran_beside_the_folder(project, output):
    assert outcomes_in(output) == BEFORE_SOLVE | dict.fromkeys(FROM_SOLVE, "Ran")
    assert sparsity_and_method(project) == (0.5, "admm")
    assert project.sh("git", "status", "--short").splitlines() == ["?? notes/"]
    assert len(project.sh("git", "worktree", "list").splitlines()) == 1
    assert float(experiments(project)[run_name([SPARSER])]["solve.sparsity"]) == 0.6


def it_is_known_and_rewrites_params(project, output):
    assert "Running stage" not in output
    assert sparsity_and_method(project) == (0.6, "admm")


def wanda_ran_on_the_rewritten_params(project, output):
    assert set(re.findall(r"Running stage '(\w+)'", output)) == FROM_SOLVE
    assert sparsity_and_method(project) == (0.6, "wanda")


def it_is_restored(project, output):
    assert outcomes_in(output) == BEFORE_SOLVE | dict.fromkeys(FROM_SOLVE, "Restored")
    assert run_name([SPARSER, WANDA]) in experiments(project)


def a_leaderboard_of_both(project, output):
    assert "| Ran" not in output
    board = next(project.folder.glob("sweeps/*/leaderboard.csv"))
    with board.open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["sparsity"]) for row in rows} == {("admm", "0.6"), ("wanda", "0.6")}
    assert float(rows[0]["perplexity"]) <= float(rows[1]["perplexity"])
    assert {row["experiment"] for row in rows} <= set(experiments(project))
    assert "<svg" in board.with_suffix(".html").read_text()


def the_experiment_is_here(project, output):
    assert sparsity_and_method(project) == (0.6, "wanda")
    nothing_runs(project, project.sh("dvc", "repro"))
    back(project)


def tells(*words):
    """A check that the output has these words."""

    def check(project, output):
        assert not [word for word in words if word not in output], output

    return check


def runs(*stages):
    """A check that these stages ran and no other."""

    def check(project, output):
        assert re.findall(r"Running stage '(\w+)'", output) == list(stages)

    return check


def wanda_is_shown(project, output):
    assert "wanda" in output
    assert "perplexity" in output
    back(project)


def every_block_is_restored(project, output):
    cost = json.loads((project.folder / "metrics/cost/solve.json").read_text())
    assert (cost["blocks_restored"], cost["blocks_made"]) == (2, 0)
    back(project)


def the_store_is_gone(project, output):
    assert not (project.folder / ".cache/blocks").exists()


def the_remote_is_default(project, output):
    assert "mine" in project.sh("dvc", "config", "core.remote")


STEPS = [
    ("python -m flows.pipeline", None, all_are_skipped),
    ("dvc repro", None, nothing_runs),
    ("dvc repro -s solve", None, nothing_runs),
    ("dvc repro fetch", None, nothing_runs),
    ("python -m flows.pipeline --stage solve", None, solve_is_skipped),
    ("python -m flows.pipeline solve.sparsity=0.6", None, it_ran_beside_the_folder),
    ("dvc exp run -S solve.sparsity=0.6", None, it_is_known_and_rewrites_params),
    ("dvc params diff", None, tells("solve.sparsity", "0.5", "0.6")),
    ("dvc metrics diff", None, tells("perplexity")),
    ("dvc exp run -S solve.method=wanda", None, wanda_ran_on_the_rewritten_params),
    ("dvc exp show", "dvc exp show --csv", tells("wanda", "admm", "0.6", "0.5")),
    ("dvc exp show --only-changed --drop 'Created|solve.sparsity|.*/'", None, tells("wanda", "perplexity")),
    ("dvc plots show", None, tells("index.html")),
    ("python -m stages.report --show", None, wanda_is_shown),
    ("python -m flows.pipeline solve.sparsity=0.6 solve.method=wanda", None, it_is_restored),
    (
        "python -m flows.sweep --method wanda,sparsegpt --sparsity 0.3,0.5",
        "python -m flows.sweep --method admm,wanda --sparsity 0.6",
        a_leaderboard_of_both,
    ),
    ("dvc exp apply NAME", f"dvc exp apply {run_name([SPARSER, WANDA])}", the_experiment_is_here),
    ("dvc remote add -d mine <any DVC remote>", "dvc remote add -d mine ../remote", the_remote_is_default),
    ("dvc push", None, tells("pushed")),
    ("python -m stages.solve", None, every_block_is_restored),
    ("python -m stages.solve --list", None, tells("admm", "attention_gd", "obs_units")),
    ("make clean-store", None, the_store_is_gone),
    ("dvc repro -f -s fetch", None, runs("fetch")),
    ("dvc repro -f -s evaluate_dense evaluate", None, runs("evaluate_dense", "evaluate")),
]  # fmt: skip
"""Documented commands in the order in which they run, what is run for them (None: the same), and the check."""

SERVED = {
    "python -m flows.serve": f"python -m flows.serve --interval 10 --name often {SPARSER}",
    'python -m flows.serve --cron "0 2 * * *"': None,
    'python -m flows.serve --cron "0 2 * * 6" --sparsity 0.3,0.5,0.7 --method wanda,sparsegpt': None,
}
DEPLOYED = {
    "prefect work-pool create local --type process": None,
    "prefect deploy --all": "prefect --no-prompt deploy --all",
    "prefect worker start --pool local": "prefect worker start --pool local --type process --run-once",
}
LAST = {"dvc gc --workspace": "dvc gc --workspace --force"}
ALIKE = {
    "dvc exp run -S solve.method=<name>": "dvc exp run -S solve.method=wanda",
    "python -m stages.<name>": "python -m stages.solve",
    "python -m flows.sweep --method magnitude,wanda,sparsegpt --sparsity 0.3,0.5,0.7":
        "python -m flows.sweep --method wanda,sparsegpt --sparsity 0.3,0.5",
    "python -m flows.sweep --method newton,flap,obs_units --sparsity 0.1,0.15,0.2":
        "python -m flows.sweep --method wanda,sparsegpt --sparsity 0.3,0.5",
    "dvc exp run -S solve.method=flap": "dvc exp run -S solve.method=wanda",
}  # fmt: skip
"""Documented commands for which another is run."""


def test_every_documented_command_is_run_or_has_a_reason():
    run = {step[0] for step in STEPS} | SERVED.keys() | DEPLOYED.keys() | LAST.keys()
    assert set(ALIKE.values()) <= run
    found = commands()
    missing = {command: page for command, page in found.items() if command not in run | ALIKE.keys() | NOT_RUN.keys()}
    assert not missing, "give each a step or a reason in tests/flows/test_documented.py"
    gone = (run | ALIKE.keys() | NOT_RUN.keys()) - found.keys()
    assert not gone, "no page has them any more"


@pytest.mark.parametrize(("documented", "run", "check"), STEPS, ids=[step[0] for step in STEPS])
def test_a_documented_command_does_what_it_says(project, documented, run, check):
    check(project, project.sh(*shlex.split(run or documented)))


def test_one_stage_alone_runs_and_no_other(project):
    project.change(solve={"method": "magnitude"})
    assert project.repro("-s", "solve") == ["solve"]
    back(project)


def test_python_blocks_run_where_a_pruned_model_is(project):
    loading = [block for _, block in blocks("python") if "data/pruned" in block]
    assert loading
    code = "\n".join([*loading, "assert sum(p.numel() for p in model.parameters()) > 0"])
    project.sh("python", "-c", code)


@pytest.mark.parametrize(("page", "block"), blocks("yaml"), ids=[page for page, _ in blocks("yaml")])
def test_yaml_blocks_are_valid_parameters(page, block, tmp_path):
    committed = parse_yaml((ROOT / "params.yaml").read_text(encoding="utf-8"), "params.yaml")
    path = tmp_path / "params.yaml"
    path.write_text(yaml_text(merge(committed, parse_yaml(block, page))))
    params.read(path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("solve.pattern=2:4", "2:4"),
        ("solve.correction_ridges=[0.1,0.5]", (0.1, 0.5)),
        ("evaluate.perplexity.windows=null", None),
        ("evaluate.speed.always=true", True),
        ("fetch.max_overlap=1e-3", 0.001),
    ],
)
def test_overrides_arrive_as_they_were_written(override, expected, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_bytes((ROOT / "params.yaml").read_bytes())
    apply_overrides(path, [override])
    assert attrgetter(override.partition("=")[0])(params.read(path)) == expected


def on_cron(project):
    """Entry points of the deployments that `flows.serve` made and that have a cron schedule."""
    found = asked(project, "/deployments/filter", {"deployments": {"name": {"any_": ["scheduled"]}}})
    return {one["entrypoint"] for one in found if any("cron" in each["schedule"] for each in one["schedules"])}


def test_schedules_are_served_and_a_run_comes_by_itself(project):
    served = [shlex.split(run or documented) for documented, run in SERVED.items()]
    started = [project.start(*command, output=subprocess.DEVNULL) for command in served]
    try:
        wait_for(lambda: ("COMPLETED", True) in runs_of(project, "often"), 300)
        wait_for(lambda: len(on_cron(project)) == 2, 60)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(120)
    assert run_name([SPARSER]) in experiments(project)


def test_prefect_yaml_deploys_and_a_worker_runs_it(project):
    *before, worker = [run or documented for documented, run in DEPLOYED.items()]
    for command in before:
        project.sh(*shlex.split(command))
    project.sh("prefect", "deployment", "run", "pipeline/nightly")
    output = project.sh(*shlex.split(worker))
    assert ("COMPLETED", False) in runs_of(project, "nightly"), output


def test_what_no_folder_holds_is_forgotten(project):
    (command,) = LAST.values()
    assert "Removed" in project.sh(*shlex.split(command))
    assert project.repro() == []
