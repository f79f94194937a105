"""Sweeps and schedules: what they refuse, what a failure leaves, which values they take."""

from __future__ import annotations

import argparse
import csv

import pytest

from flows.errors import FlowError
from flows.leaderboard import Entry, write_leaderboard
from flows.serve import check_schedule
from flows.sweep import lists_of, override_text
from flows.worktree import run_name


def test_a_failed_combination_is_told_and_what_is_shared_runs_once(toy):
    toy.change(solve={"fails": False})
    output = toy.flow("sweep", "--list", "solve.fails=true,false", code=1)
    assert "1 of 2 runs failed" in output
    assert sorted(toy.ran()) == ["extract", "solve", "solve"]
    rows = list(csv.DictReader(next(toy.folder.glob("sweeps/*/leaderboard.csv")).open()))
    assert [row["perplexity"] for row in rows] == ["70.0", "failed"]
    assert "expected false, got true" in rows[1]["experiment"]


def test_a_sweep_of_nothing_is_refused(toy):
    assert "expected at least one parameter with values" in toy.flow("sweep", code=1)


def test_a_server_that_does_not_answer_is_told_in_a_line(toy):
    toy.environment = {**toy.environment, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    for command in (("serve", "--cron", "0 2 * * *"), ("pipeline",)):
        output = toy.flow(*command, code=1)
        assert output.startswith("PREFECT_API_URL: no Prefect server answers at http://127.0.0.1:9/api"), output
        assert len(output.splitlines()) == 1


def lists(*given):
    return lists_of(argparse.Namespace(method=None, sparsity="0.3,0.5", list=list(given)))


def test_lists_are_read_as_hydra_reads_overrides():
    assert lists() == {"solve.sparsity": ["0.3", "0.5"]}
    assert lists("a=[0.1,0.2],[1]", "b=2:4,4:8", "c='x,y',null") == {
        "solve.sparsity": ["0.3", "0.5"],
        "a": ["[0.1,0.2]", "[1]"],
        "b": ["2:4", "4:8"],
        "c": ["'x,y'", "null"],
    }
    assert [override_text(value) for value in (None, True, 0.5, {"roles": ["mlp"]})] == [
        "null",
        "True",
        "0.5",
        "{roles:[mlp]}",
    ]


@pytest.mark.parametrize("given", [["a"], ["a=1,"], ["a=interval(1,4)"], ["a=1", "a=2"], ["solve.sparsity=0.7"]])
def test_lists_that_are_none_are_refused(given):
    with pytest.raises(FlowError, match=r"^sweep: .*expected|given twice"):
        lists(*given)


@pytest.mark.parametrize(("cron", "interval"), [("0 2 * * *", None), ("@daily", None), (None, "60")])
def test_schedules_are_taken(cron, interval):
    assert check_schedule(cron, interval) in ({"cron": cron}, {"interval": 60.0})


@pytest.mark.parametrize(
    ("cron", "interval"),
    [("nightly", None), ("", None), ("61 * * * *", None), *((None, bad) for bad in ("0", "-3", "often", "nan", "inf"))],
)
def test_what_is_no_schedule_is_refused_with_what_was_expected(cron, interval):
    option = "--cron: expected five fields" if interval is None else "--interval: expected seconds"
    with pytest.raises(FlowError, match=option):
        check_schedule(cron, interval)


def test_names_of_runs_are_git_references():
    name = run_name(["fetch.model.path=../my models/x", "solve.rules=[{blocks:[0],sparsity:0}]"])
    assert ".." not in name
    assert not set(name) & set(" ~^:?*[\\{}/")


def test_a_leaderboard_of_values_that_are_no_numbers(tmp_path):
    found = {model: {"perplexity": {"value": 20.0}} for model in ("dense", "pruned")}
    entries = [
        Entry({"solve.sparsity": value}, "name", found, {"solve": {"seconds": 1.0}}) for value in ("null", "0.5")
    ]
    write_leaderboard(tmp_path, ("solve.sparsity",), entries)
    assert "| null | 20.0 |" in (tmp_path / "leaderboard.md").read_text()
    assert "<svg" in (tmp_path / "leaderboard.html").read_text()
