"""The flow over a small project: what runs, what a failure tells, what a kill leaves, who waits for whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows import repro
from flows.errors import FlowError, NetworkFailed, StageFailed
from flows.graph import read_graph
from flows.pipeline import _could_not_reach_the_network
from flows.worktree import overridden, run_name
from stages.params.yamlfile import read_yaml
from tests.helpers.waiting import wait_for

ALL = ("extract", "solve", "report")


def all_are(outcome, *stages):
    return dict.fromkeys(stages or ALL, outcome)


def test_stages_run_are_skipped_and_are_restored(toy):
    """All skipped, and a stage that is not there, are in test_documented.py and tests/bad_input."""
    assert toy.outcomes() == all_are("Ran")
    toy.change(solve={"value": 0.7})
    assert toy.outcomes() == {"extract": "Skipped", "solve": "Ran", "report": "Ran"}
    toy.change(solve={"value": 0.5})
    assert toy.outcomes() == {"extract": "Skipped", "solve": "Restored", "report": "Restored"}
    assert toy.outcomes("--stage", "solve", "--force") == {"solve": "Ran"}


def test_the_graph_is_dvcs(toy):
    graph = read_graph(toy.folder)
    assert graph.order == ALL
    assert graph.needs["solve"] == {"extract"}
    assert graph.changed == set(ALL)


def test_a_failing_stage_fails_the_flow_with_its_own_message(toy):
    toy.change(solve={"fails": True})
    output = toy.flow("pipeline", code=1)
    assert "solve: error: solve.fails: expected false, got true: set it to false" in output.splitlines()
    assert "Traceback" not in output
    assert toy.ran() == ["extract", "solve"]  # once, and not again


def test_only_the_network_is_tried_again(toy):
    with (toy.folder / "lock").open("w") as lock:
        for setting, kind in (("fails", StageFailed), ("unreachable", NetworkFailed)):
            toy.change(solve={"fails": False, "unreachable": False, setting: True})
            toy.sh("dvc", "repro", "extract")
            with pytest.raises(StageFailed) as raised:
                repro.reproduce(toy.folder, "solve", False, lambda line: None, toy.environment, lock.fileno())
            assert type(raised.value) is kind

            class State:
                def result(self, error=raised.value):
                    raise error

            assert _could_not_reach_the_network(None, None, State()) == (kind is NetworkFailed)


def test_overrides_run_beside_the_workspace_with_what_is_not_committed(toy):
    toy.outcomes()
    toy.ran()
    before = (toy.folder / "params.yaml").read_bytes(), (toy.folder / "dvc.lock").read_bytes()
    (toy.folder / "metrics.py").write_text((toy.folder / "metrics.py").read_text() + "# not committed\n")
    killed = ".dvc/tmp/worktrees/killed"
    toy.sh("git", "worktree", "add", "--detach", killed)
    toy.sh("git", "checkout", "--quiet", "--detach")
    assert toy.outcomes("solve.value=0.25") == {"extract": "Skipped", "solve": "Ran", "report": "Ran"}
    assert ((toy.folder / "params.yaml").read_bytes(), (toy.folder / "dvc.lock").read_bytes()) == before
    assert toy.ran() == ["solve"]
    assert json.loads((toy.folder / "data/solve.json").read_text())["value"] == 0.5
    assert run_name(["solve.value=0.25"]) in toy.sh("dvc", "exp", "show", "--csv")
    told = toy.flow("pipeline", "solve.valeu=0.25", code=1)  # more that are refused: tests/bad_input/flows.py
    assert "Traceback" not in told
    assert any(line.startswith("params.yaml: ") for line in told.splitlines()), told
    assert not (toy.folder / killed).exists()
    assert len(toy.sh("git", "worktree", "list").splitlines()) == 1


SETTINGS = """\
[cache]
    dir = ../../shared cache
['remote "kept"']
    url = ../../kept
"""


def test_a_worktree_has_the_projects_settings_of_dvc_its_cache_and_its_links(toy, tmp_path):
    settings = toy.folder / ".dvc/config.local"
    settings.write_text(SETTINGS)
    settings.chmod(0o600)
    (tmp_path / "shared cache").mkdir()
    (toy.folder / "linked").symlink_to("../shared cache")
    with overridden(toy.folder, ["solve.value=1"]) as path:
        with Repo(str(path)) as repo:
            assert repo.cache.local_cache_dir == str(tmp_path / "shared cache")
            assert repo.config["remote"]["kept"]["url"] == str(tmp_path / "kept")
        assert (path / ".dvc/config.local").stat().st_mode & 0o777 == 0o600
        assert (path / "linked").resolve() == tmp_path / "shared cache"
    settings.write_text("[cache\n")
    with pytest.raises(FlowError, match=r"\.dvc: "), overridden(toy.folder, ["solve.value=1"]):
        pass


def started(toy):
    return (toy.folder / "data/solve.started").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_flow_stops_its_stage_and_leaves_the_workspace_fit_to_run(toy, how):
    toy.change(solve={"seconds": 60})
    process = toy.start("python", "-m", "flows.pipeline", forked=False)
    wait_for(lambda: started(toy), 60)
    process.send_signal(how)
    assert process.wait(60) != 0
    assert not stages_in(toy)
    toy.change(solve={"seconds": 0})
    assert toy.outcomes() == {"extract": "Skipped", "solve": "Ran", "report": "Ran"}


def test_after_kill_9_of_the_flow_another_waits_for_its_stage_and_goes_on(toy):
    toy.change(solve={"seconds": 3})
    process = toy.start("python", "-m", "flows.pipeline", forked=False)
    wait_for(lambda: started(toy), 60)
    process.kill()
    process.wait()
    assert set(toy.outcomes()) == set(ALL)
    assert toy.outcomes() == all_are("Skipped")
    assert json.loads((toy.folder / "data/solve.json").read_text())["value"] == 0.5


def test_after_kill_9_of_the_stage_the_next_run_completes(toy):
    toy.change(solve={"seconds": 60})
    process = toy.start("python", "-m", "flows.pipeline", forked=False)
    wait_for(lambda: started(toy), 60)
    for pid in stages_in(toy):
        os.kill(pid, signal.SIGKILL)
    assert process.wait(60) == 1
    toy.change(solve={"seconds": 0})
    assert toy.outcomes() == {"extract": "Skipped", "solve": "Ran", "report": "Ran"}


def stages_in(toy):
    """Processes of this project's stages."""
    listed = subprocess.run(["pgrep", "-f", "stage.py (extract|solve)"], capture_output=True, text=True, check=False)
    found = []
    for pid in map(int, listed.stdout.split()):
        try:
            if Path(f"/proc/{pid}/cwd").readlink() == toy.folder:
                found.append(pid)
        except OSError:
            continue
    return found


def test_two_flows_at_once_queue_and_mix_nothing(toy):
    toy.change(solve={"seconds": 4})
    first = toy.start("python", "-m", "flows.pipeline")
    wait_for(lambda: started(toy), 60)
    begin = time.monotonic()
    second = toy.start("python", "-m", "flows.pipeline", "solve.value=0.9", "solve.seconds=0")
    outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "waiting for the run of process" in outputs[1], time.monotonic() - begin
    assert json.loads((toy.folder / "data/solve.json").read_text())["value"] == 0.5
    lock = read_yaml(toy.folder / "dvc.lock")
    assert lock["stages"]["solve"]["params"]["params.yaml"]["solve"]["value"] == 0.5
    toy.sh("git", "stash", "--include-untracked", "--quiet")
    toy.sh("dvc", "exp", "apply", run_name(["solve.value=0.9", "solve.seconds=0"]))
    assert json.loads((toy.folder / "data/solve.json").read_text())["value"] == 0.9


def test_a_folder_without_a_project_is_named(toy, tmp_path):
    toy.folder = tmp_path
    assert "dvc.yaml is not in" in toy.flow("pipeline", code=1)
