"""params.yaml is YAML 1.2: what `dvc exp run -S` writes is read as it was meant, and as DVC reads it."""

from __future__ import annotations

import pytest
from dvc.utils.hydra import apply_overrides
from dvc.utils.serialize import load_yaml

from stages import params
from stages.errors import ParameterError
from stages.params.yamlfile import read_yaml, yaml_text
from tests.helpers.committed import ROOT
from tests.helpers.tiny import write_params


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2:4", "2:4"), ("1:20:30", "1:20:30"), ("on", "on"), ("off", "off"), ("yes", "yes"), ("y", "y"),
        ("1e-3", 0.001), ("1E5", 1e5), ("-2e3", -2000.0), (".5", 0.5), ("0o7", 7), ("010", 10), ("09", 9),
        ("1_000", 1000), ("0x1F", 31), ("true", True), ("~", None), ("null", None), ("''", ""), ('"2:4"', "2:4"),
        ("{from: 0, to: 2}", {"from": 0, "to": 2}), ('[0, "0-2", -1]', [0, "0-2", -1]),
    ],
)  # fmt: skip
def test_a_scalar_is_what_yaml_1_2_and_dvc_say(text, value, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(f"a: {text}\n")
    found = read_yaml(path)["a"]
    assert (found, type(found)) == (value, type(value))
    assert load_yaml(path) == {"a": value}
    path.write_text(yaml_text({"a": value}))
    assert read_yaml(path) == load_yaml(path) == {"a": value}


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("solve.pattern=2:4", ("pattern",), "2:4"),
        ("solve.pattern='2:4'", ("pattern",), "2:4"),
        ("solve.correction=1e-3", ("correction",), 0.001),
        ("solve.correction_ridges=[1e-2,1]", ("correction_ridges",), (0.01, 1.0)),
        ("solve.correction=.5", ("correction",), 0.5),
        ("solve.method=wanda", ("method",), "wanda"),
    ],
)
def test_what_dvc_writes_is_read_as_it_was_meant(override, place, value, tmp_path):
    """Whatever else is overridden, values that stood in quotes before stay what they were."""
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text().replace("\n  pattern: unstructured ", '\n  pattern: "2:4" ')
    path.write_text(text)
    apply_overrides(path, [override])
    found = params.read(path).solve
    for part in place:
        found = getattr(found, part)
    assert found == value
    assert params.read(path).solve.pattern == "2:4"
    assert read_yaml(path) == load_yaml(path)


@pytest.mark.parametrize("value", ["on", "0o7", "010", "1_000", "1e5", "2024-01-02", "null", "2:4"])
def test_a_revision_that_looks_like_another_type_stays_a_string(value, tmp_path):
    model = {"source": "hub", "id": "some/model", "revision": "main"}
    write_params(tmp_path, fetch={"model": model})
    path = tmp_path / "params.yaml"
    apply_overrides(path, [f'fetch.model.revision="{value}"'])
    assert params.read(path).fetch.model.revision == value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\na: 2\n", r'params.yaml is not YAML: line 2, column 1: .*found duplicate key "a"'),
        ("solve:\n\tmethod: admm\n", r"line 2, column 1: .*\(there is a tab: YAML is indented by spaces\)"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: expected a single document in the stream, but found another"),
        ("solve: [", "line 2, column 1"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("a: *b", "found undefined alias"),
        ("a: !foo b", "could not determine a constructor for the tag '!foo'"),
        ("a: \x00", "control characters are not allowed"),
        ("a: 2024-13-45", "month must be in 1..12: put strings in quotes"),
        ("a: !!bool b", "'b': put strings in quotes"),
        (b"solve:\n  method: adm\xe9\n", "params.yaml is not UTF-8: byte 0xe9 in line 2: save the file as UTF-8"),
        ("", r"params.yaml: expected the sections compute, fetch, .*, got an empty file"),
        ("# nothing\n", "got an empty file"),
        ("- a\n- b\n", "got a list"),
        ("solve", "got 'solve'"),
    ],
)
def test_a_file_that_holds_no_parameters_is_told_in_one_line(text, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ParameterError, match=told) as error:
        params.read()
    assert "\n" not in str(error.value)


def test_a_place_that_is_no_file_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=r"params\.yaml is not in"):
        params.read()
    (tmp_path / "params.yaml").mkdir()
    with pytest.raises(ParameterError, match=r"params\.yaml cannot be read"):
        params.read()
