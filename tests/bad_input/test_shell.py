"""Bad input through the shell: one line that says what to do, exit code not 0, results as they were.

Each row of the tables beside this file is run as `python -m COMMAND` in a copy of a good project that was spoiled. To
be quick, a command is a fork of a process that has imported the libraries; SECATEUR_SHELL=1 runs every one through
bash in a process of its own, as a few are always.
"""

from __future__ import annotations

import re

import pytest

from tests.bad_input import (
    artifacts,
    dvc,
    flows,
    images,
    machine,
    methods,
    params_file,
    rules,
    settings,
    sources,
    tasks,
)
from tests.bad_input.project import RealShell, copy_project, environment_of, results_of

STAGES = [
    case
    for table in (params_file, settings, methods, rules, sources, tasks, artifacts, machine, images)
    for case in table.CASES
]
THROUGH_BASH = {
    "a tab indents", "an option that is not there", "a window longer than the text",
    "report without metrics/dense.json",
}  # fmt: skip
FLOWS_THROUGH_BASH = {"an override of what is not there", "a schedule of four fields", "no schedule"}
ERROR = re.compile(r"^(python -m )?[\w.]+: (network )?error: ")
LOG = re.compile(r"^\d\d:\d\d:\d\d\.\d+ \|")
REAL = RealShell()


def named(cases):
    return [pytest.param(case, id=case.name) for case in cases]


def test_there_are_at_least_120_and_their_names_differ():
    names = [case.name for case in (*STAGES, *flows.CASES, *flows.ALONE, *dvc.CASES)]
    assert len(names) == len(set(names)) >= 120
    assert {*THROUGH_BASH, *FLOWS_THROUGH_BASH} <= set(names)


@pytest.mark.parametrize("case", named(STAGES))
def test_a_stage_tells_bad_input_in_one_line(case, shell, project, tmp_path):
    check(case, REAL if case.name in THROUGH_BASH else shell, project, tmp_path / "project")


@pytest.mark.parametrize("case", named(flows.CASES))
def test_a_flow_tells_bad_input_in_one_line(case, flow_shell, dvc_project, prefect, tmp_path):
    check(case, REAL if case.name in FLOWS_THROUGH_BASH else flow_shell, dvc_project, tmp_path / "project", prefect)


@pytest.mark.parametrize("case", named([*flows.ALONE, *dvc.CASES]))
def test_the_shell_itself_shows_one_line_and_outputs_come_back(case, dvc_project, tmp_path):
    check(case, REAL, dvc_project, tmp_path / "project")


def check(case, shell, project, folder, environment=None):
    """Run a case in a copy of the project; fails with what was told."""
    copy_project(project, folder)
    for change in case.change:
        change(folder)
    before = results_of(folder)
    environment = {**environment_of(folder), **(environment or {}), **case.environment}
    ended = shell.run(case.command, folder, environment, case.limits)
    faults = list(faults_of(case, ended.code, ended.err))
    if case.told is not None and results_of(folder) != before:
        faults.append("results changed")
    if faults:
        pytest.fail("\n".join([*faults, "it told:", ended.err[-3000:]]), pytrace=False)


def faults_of(case, code, told):
    """What is wrong with the end of a command."""
    lines = [line for line in told.splitlines() if ERROR.match(line)]
    if case.command.startswith("flows.") and not lines:  # a flow's error has no name before it
        lines = [line for line in told.splitlines() if not LOG.match(line)]
    if code != case.code:
        yield f"expected exit code {case.code}, got {code}"
    if "Traceback" in told:
        yield "expected no traceback"
    if len(lines) != (case.told is not None):
        yield f"expected {int(case.told is not None)} lines of error, got {len(lines)}"
    for part in case.told or ():
        if lines and not re.search(part, lines[-1], re.IGNORECASE):
            yield f"expected {part!r}"
