"""solve.rules: lists are lists, ranges have both ends, the first match governs; a rule without effect is an error."""

from __future__ import annotations

import pytest

from stages import params, solve
from stages.artifacts.linears import LINEARS
from stages.errors import ParameterError
from stages.params.pruning import Rule
from stages.params.ranges import as_ranges, resolve_numbers
from stages.runtime.stage import run_stage
from stages.solving.rules import BlockUnits, match_rules
from tests.helpers.tiny import write_params

PARTS = [BlockUnits(role, block) for block in range(3) for role in ("attention", "mlp")]


@pytest.mark.parametrize(
    ("blocks", "count", "meant"),
    [
        ([0, 2], 9, [0, 2]),
        ([0, -1], 9, [0, 8]),
        ([2, 0, 2], 9, [0, 2]),
        ("0-2", 9, [0, 1, 2]),
        ({"from": 0, "to": 2}, 9, [0, 1, 2]),
        ({"from": -3, "to": -1}, 9, [6, 7, 8]),
        ({"from": 1, "to": -2}, 5, [1, 2, 3]),
        ("-3--1", 9, [6, 7, 8]),
        (["0-1", 4, -1], 9, [0, 1, 4, 8]),
        (3, 9, [3]),
    ],
)
def test_blocks_are_those_of_the_list_and_of_its_ranges(blocks, count, meant):
    rule = Rule(blocks=blocks, sparsity=0)
    assert resolve_numbers(rule.blocks, count) == meant
    again = Rule(**rule.model_dump(mode="json"))
    assert resolve_numbers(again.blocks, count) == meant


@pytest.mark.parametrize(
    ("blocks", "place", "message"),
    [
        ([], "blocks", "at least 1 item"),
        ("0-", "blocks", 'expected a range such as "0-2" or {from: 0, to: 2}'),
        ("2-0", "blocks", "the range 2-0 holds nothing: write its smaller end first"),
        ({"from": -1, "to": -2}, "blocks", "holds nothing"),
        ({"first": 0, "last": 2}, "blocks", 'such as "0-2" or {from: 0, to: 2}'),
        ([0.5], "blocks", "got 0.5"),
        ([True], "blocks", "got True"),
        (None, "", ""),
    ],
)
def test_blocks_that_are_none_are_told(blocks, place, message, tmp_path):
    write_params(tmp_path, solve={"rules": [{"blocks": blocks, "sparsity": 0.1}]})
    if blocks is None:
        assert params.read(tmp_path / "params.yaml").solve.rules[0].blocks is None
        return
    with pytest.raises(ParameterError) as error:
        params.read(tmp_path / "params.yaml")
    assert f"solve.rules[0].{place}" in str(error.value)
    assert message in str(error.value)
    assert "function-" not in str(error.value)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([0, 800], 'fetch.calibration.documents: expected a range with both ends, got [0, 800]: write "0-799"'),
        ([3, 3], "fetch.calibration.documents"),
        ("3-1", "fetch.calibration.documents: the range 3-1 holds nothing"),
        ({"from": -5, "to": 1}, "fetch.calibration.documents: documents are counted from 0, got -5-1"),
        (5, "fetch.calibration.documents: expected a range"),
    ],
)
def test_documents_are_a_range_with_both_ends(documents, message, tmp_path):
    text = {"source": "local", "path": "a.txt"}
    write_params(tmp_path, fetch={"calibration": {**text, "documents": documents}})
    with pytest.raises(ParameterError) as error:
        params.read(tmp_path / "params.yaml")
    assert message in str(error.value)
    for given in ("2-4", {"from": 2, "to": 4}):
        write_params(tmp_path, fetch={"calibration": {**text, "documents": given}})
        found = params.read(tmp_path / "params.yaml").fetch.calibration
        assert found.model_dump(mode="json")["documents"] == "2-4"


def test_numbers_are_told_in_runs():
    assert as_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_the_first_rule_that_matches_governs():
    rules = [Rule(roles="attention", blocks=[0, 2]), Rule(blocks=[0]), Rule(roles=["attention"])]
    assert match_rules(rules, PARTS, 3) == [0, 1, 2, None, 0, None]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"blocks": [3]}], "solve.rules[0].blocks: the model has 3 blocks: expected some of 0 to 2 (-1 is the last)"),
        ([{"blocks": "1-3"}], "expected some of 0 to 2 (-1 is the last), got 1-3"),
        ([{"blocks": [-4]}], "got -4"),
        ([{"blocks": {"from": 2, "to": -2}}], "got 2--2"),
        ([{}, {"blocks": [0]}], "solve.rules[1] never applies: all it speaks of is matched before, by rules[0]:"),
        (
            [{"roles": "mlp"}, {"roles": ["attention"], "blocks": [0]}, {"blocks": [0]}],
            "solve.rules[2] never applies: all it speaks of is matched before, by rules[0] and rules[1]:",
        ),
        ([{"roles": ["mlp", "other"], "blocks": 1}], "solve.rules[0].roles: nothing in blocks 1 has the role other: "),
    ],
)  # fmt: skip
def test_a_rule_that_governs_nothing_is_an_error(rules, message):
    with pytest.raises(ParameterError) as error:
        match_rules([Rule(**rule) for rule in rules], PARTS, 3)
    assert message in str(error.value)


@pytest.mark.parametrize("method", ["magnitude", "newton"])
def test_first_and_last_protected_leaves_the_middle_pruned_and_says_so(method, workspace, capsys):
    """`[0, 2]` once meant the first to the last: a model of three blocks stayed dense."""
    w = workspace(solve={"method": method, "sparsity": 0.2, "rules": [{"blocks": [0, -1], "sparsity": 0}]})
    w.run("extract", "statistics")
    assert run_stage("solve", solve.main, solve.SECTIONS) == 0
    lines = [line.removeprefix("solve").strip() for line in capsys.readouterr().err.splitlines() if "rule" in line]
    rows = LINEARS.read(w.folder / "data/solution/linears.parquet")
    assert {row["block"] for row in rows if row["kept"] < row["weights"]} == {1}
    if method == "magnitude":
        assert lines == [
            "solve.rules[0]: blocks 0, 2: 14 linears, dense",
            "no rule: 7 linears, sparsity 0.2, magnitude",
        ]
    else:
        assert lines[0].startswith("solve.rules[0]: blocks 0, 2: 4 times all heads or all channels")


@pytest.mark.parametrize("method", ["magnitude", "newton"])
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"blocks": [7], "sparsity": 0}], "solve.rules[0].blocks: the model has 3 blocks"),
        ([{"sparsity": 0.2}, {"roles": "mlp", "sparsity": 0}], "solve.rules[1] never applies"),
    ],
)
def test_a_rule_without_effect_stops_the_stage(method, rules, message, workspace):
    w = workspace(solve={"method": method, "sparsity": 0.3, "rules": rules})
    w.run("extract", "statistics")
    code, line = w.fail("solve")
    assert (code, message in line) == (2, True), line
