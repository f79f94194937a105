"""Documents come as their source has them; which are taken is a matter of the seed; texts do not overlap."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.artifacts.manifest import sha256_of
from stages.errors import ParameterError, SourceError
from stages.params.fetching import HubText, LocalText, TextOptions, WheelText
from stages.sources import wheels
from stages.sources.documents import Document, read_documents
from stages.sources.overlap import check_disjoint, shared_fraction
from stages.sources.repeats import LONG
from stages.sources.texts import choose_text, select_documents

PLACE = "fetch.calibration"
NUMBERED = [Document(f"document {number}") for number in range(50)]


def local(path, **options):
    return LocalText(source="local", path=path, **options)


def long_line(number):
    return f"{number} ".ljust(LONG, "x")


@pytest.fixture
def files(tmp_path):
    """The same two labelled documents in every form that has labels."""
    rows = [{"body": "née", "topic": "b"}, {"body": "deux", "topic": "a"}]
    (tmp_path / "rows.jsonl").write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for row in rows:
        folder = tmp_path / "folder" / row["topic"]
        folder.mkdir(parents=True)
        (folder / "1.txt").write_text(row["body"], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_rows_are_documents_in_their_order(files, name):
    source = local(files / name, column="body", label_column="topic")
    assert list(read_documents(source, PLACE)) == [Document("née", "b"), Document("deux", "a")]
    assert list(read_documents(local(files / name, column="body"), PLACE)) == [Document("née"), Document("deux")]


def test_files_of_a_folder_are_documents_labelled_by_their_folder(files):
    assert list(read_documents(local(files / "folder"), PLACE)) == [Document("deux", "a"), Document("née", "b")]
    assert list(read_documents(local(files / "folder" / "a"), PLACE)) == [Document("deux")]


def test_a_text_file_is_one_document_whatever_its_encoding(tmp_path):
    path = tmp_path / "a.txt"
    for data in ("\ufeffnée\r\n".encode(), "née\r\n".encode("latin-1")):
        path.write_bytes(data)
        assert list(read_documents(local(path), PLACE)) == [Document("née\r\n")]


def test_members_of_a_wheel_are_documents_labelled_by_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = wheels.FOLDER / "texts-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("texts/tech/2.txt", "two £".encode("latin-1"))
        archive.writestr("texts/art/1.txt", "one")
    source = WheelText(source="wheel", package="texts==1", sha256=sha256_of(path), member="texts/*/*.txt")
    assert list(read_documents(source, PLACE)) == [Document("one", "art"), Document("two £", "tech")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", "", r"calibration\.path: expected a \.txt, \.jsonl, \.parquet file"),
        ("a.jsonl", '{"text": "a"}\n{', r"a\.jsonl, line 2: expected a JSON object a line, got what is not JSON"),
        ("a.jsonl", '{"body": "a"}', r"row 0 of .* has no text: it has body"),
        ("a.jsonl", '["a"]', r"has no text: it has a list"),
        ("a.jsonl", '{"text": null}', r"row 0 of .*a\.jsonl holds null as text, expected text"),
        ("a.parquet", "PAR1", r"is no readable Parquet file"),
    ],
)
def test_files_that_hold_no_text_are_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises((SourceError, ParameterError), match=message):
        list(read_documents(local(tmp_path / name), PLACE))


def test_what_is_not_there_is_refused(files):
    for path, message in ((files / "no.txt", "is not there"), (files / "empty", "holds no .txt file")):
        (files / "empty").mkdir(exist_ok=True)
        with pytest.raises(SourceError, match=message):
            list(read_documents(local(path), PLACE))
    with pytest.raises(ParameterError, match="has no column text: it has body, topic"):
        list(read_documents(local(files / "rows.parquet"), PLACE))


def test_a_shuffle_is_that_of_the_seed_and_ranges_of_it_are_disjoint():
    expected = list(NUMBERED)
    random.Random(3).shuffle(expected)
    first, _ = select_documents(NUMBERED, TextOptions(shuffle=3, documents="0-19"), PLACE)
    second, _ = select_documents(NUMBERED, TextOptions(shuffle=3, documents={"from": 20, "to": 49}), PLACE)
    assert first + second == expected
    assert select_documents(NUMBERED, TextOptions(documents="2-3"), PLACE)[0] == NUMBERED[2:4]


def test_repeats_are_dropped_before_shuffling_and_counted():
    updated = Document("\n".join([long_line(1), long_line(2), "news", long_line(4)]))
    article = Document("\n".join([long_line(1), long_line(2), long_line(3)]))
    other = Document("\n".join([long_line(3), long_line(5)]))  # half of it is new
    documents = [NUMBERED[0], article, NUMBERED[0], updated, other, NUMBERED[1]]
    taken, dropped = select_documents(documents, TextOptions(shuffle=0), PLACE)
    assert dropped == 2
    assert set(taken) == {NUMBERED[0], article, other, NUMBERED[1]}


def test_a_whole_source_in_its_order_keeps_its_repeated_rows():
    rows = [Document(text) for text in ("= Title =", "", "line", "", "line")]
    assert select_documents(rows, TextOptions(), PLACE) == (rows, 0)


def test_no_more_documents_are_read_than_are_asked_for():
    def endless():
        yield from NUMBERED[:3]
        raise AssertionError("read on")

    assert select_documents(endless(), TextOptions(documents="0-2"), PLACE)[0] == NUMBERED[:3]


def test_more_documents_than_there_are_is_refused():
    with pytest.raises(ParameterError, match=r"calibration\.documents: expected a last one of at most 49, .* got 0-50"):
        select_documents(NUMBERED + NUMBERED, TextOptions(documents="0-50"), PLACE)


def test_the_text_is_replaced_then_joined_and_its_facts_tell(files):
    options = {"column": "body", "join": " | ", "replace": {"née": "born"}, "documents": "0-1"}
    chosen = choose_text(local(files / "rows.jsonl", **options), PLACE)
    assert chosen.text == "born | deux"
    assert chosen.facts["name"] == "rows.jsonl documents 0-1"
    assert chosen.facts["sha256"] == hashlib.sha256(b"born | deux").hexdigest()
    assert (chosen.facts["documents"], chosen.facts["characters"], chosen.facts["join"]) == (2, 11, " | ")
    assert chosen.facts["source"]["path"] == str(files / "rows.jsonl")


def test_an_empty_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(ParameterError, match=r"calibration: the text is empty"):
        choose_text(local(tmp_path / "a.txt"), PLACE)


def test_the_shared_part_is_counted_in_characters_of_long_lines():
    ours = [long_line(1), "short", long_line(2)]
    assert shared_fraction(["  " + long_line(1) + "\nshort"], ["\n".join(ours)]) == 0.5
    assert shared_fraction([long_line(3)], ["\n".join(ours)]) == 0
    assert shared_fraction(["short"], ["short"]) == 0


def test_wrapped_text_is_judged_by_its_shorter_lines():
    wrapped = [f"{number} ".ljust(60, "x") for number in range(4)]
    assert shared_fraction([wrapped[0]], ["\n".join(wrapped)]) == 0.25


@pytest.mark.parametrize("join", ["\n\n", " "])
def test_text_that_calibration_also_holds_is_refused_with_its_share(tmp_path, join):
    for name, numbers in (("a", (1, 2, 3)), ("b", (3, 4, 5, 6))):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": long_line(n)}) for n in numbers))
    ours, other = (choose_text(local(tmp_path / f"{name}.jsonl", join=join), PLACE) for name in "ab")
    with pytest.raises(ParameterError, match=r"evaluation: 25\.0% of it .* at most 1\.0% \(fetch\.max_overlap\)"):
        check_disjoint(ours, other, 0.01)
    assert check_disjoint(ours, other, 0.3) == 0.25
    with pytest.raises(ParameterError, match="this is the calibration text"):
        check_disjoint(ours, ours, 1.0)


def hub_text(**options):
    return HubText(source="hub", **{"id": "Salesforce/wikitext", "config": "wikitext-2-raw-v1", **options})


def test_rows_of_a_hub_dataset_are_documents(monkeypatch):
    asked = {}

    def load_dataset(*names, **options):
        asked.update(options, names=names)
        return datasets.Dataset.from_dict({"text": ["a", "", "b"], "other": [1, 2, 3]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = hub_text(split="test", data_files="x.json.gz", revision="abc")
    assert [one.text for one in read_documents(source, PLACE)] == ["a", "", "b"]
    assert asked == {
        "names": ("Salesforce/wikitext", "wikitext-2-raw-v1"),
        "data_files": {"test": "x.json.gz"},
        "split": "test",
        "revision": "abc",
    }
    assert choose_text(hub_text(split="test"), PLACE).facts["name"] == "Salesforce/wikitext wikitext-2-raw-v1 test"
    with pytest.raises(ParameterError, match=r"calibration\.column: expected one of text, other, got body"):
        list(read_documents(hub_text(column="body"), PLACE))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Salesforce/wikitext", "wikitext-2-raw-v1"),
        ("allenai/c4", r"data_files: en/c4-train\.00000-of-01024\.json\.gz"),
        ("ptb-text-only/ptb_text_only", "revision: refs/convert/parquet"),
        ("someone/some_text", "source: local"),
    ],
)
def test_an_unreachable_dataset_names_the_form_that_works_and_the_local_way(monkeypatch, name, advice):
    def unreachable(*names, **options):
        raise ConnectionError(f"Couldn't reach '{names[0]}' on the Hub (LocalEntryNotFoundError)\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(SourceError, match=rf"Couldn't reach .*{advice}") as raised:
        list(read_documents(hub_text(id=name, data_files="en/x.json.gz"), PLACE))
    assert "source: local, path: <.txt, .jsonl or .parquet>" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_whole_of_c4_is_not_downloaded():
    with pytest.raises(ParameterError, match=r"calibration\.data_files: allenai/c4 has hundreds of GB"):
        list(read_documents(hub_text(id="allenai/c4", config=None), PLACE))


def write_parquet(path, values, spoil=False):
    pq.write_table(pa.table({"text": values}), path, compression="none", use_dictionary=False)
    if spoil:
        data = bytearray(path.read_bytes())
        data[4:40] = b"\xff" * 36
        path.write_bytes(data)


def loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (
            "a.txt",
            lambda p: p.write_bytes(random.Random(0).randbytes(4000)),
            r"a\.txt is no text \(1\d% of it are control",
        ),
        ("a.txt", lambda p: p.write_bytes("text".encode("utf-16")), r"a\.txt is UTF-16: convert it to UTF-8"),
        ("a.txt", loop, r"a\.txt is not there"),
        ("a.txt", lambda p: p.mkdir(), r"a\.txt holds no \.txt file"),
        (
            "folder/a.txt",
            loop,
            r"a\.txt cannot be read \(.*symbolic links\): check the path, its links and permissions",
        ),
        ("folder/a.txt", lambda p: p.mkdir(), r"folder holds no \.txt file"),
        (
            "a.jsonl",
            lambda p: p.write_bytes(b'{"text": "a"}\n{"text": "n\xe9e"}'),
            r"a\.jsonl, line 2: expected UTF-8.*iconv",
        ),
        ("a.jsonl", lambda p: p.write_bytes(b"[" * 100_000), r"a\.jsonl, line 1: expected a JSON object"),
        ("a.jsonl", lambda p: p.write_text("3"), r"row 0 of .*a\.jsonl has no text: it has a int"),
        (
            "a.parquet",
            lambda p: write_parquet(p, [1, 2]),
            r"row 0 of .*a\.parquet holds 1 \(int\) as text, expected text",
        ),
        ("a.parquet", lambda p: write_parquet(p, [["a"]]), r"row 0 of .*a\.parquet holds \['a'\] \(list\) as text"),
        ("a.parquet", lambda p: write_parquet(p, [None]), r"row 0 of .*a\.parquet holds null as text"),
        ("a.parquet", lambda p: write_parquet(p, ["a" * 99], True), r"a\.parquet is no readable Parquet file \(.*\)"),
        ("a.parquet", lambda p: p.mkdir(), r"a\.parquet holds no \.txt file"),
    ],
)
def test_what_is_no_readable_text_is_one_line_that_names_place_and_file(name, make, message, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    source = local(path.parent if path.parent != tmp_path else path)
    with pytest.raises((SourceError, ParameterError), match=message) as raised:
        choose_text(source, PLACE)
    assert str(raised.value).startswith(PLACE)
    assert "\n" not in str(raised.value)


def test_a_file_that_may_not_be_read_is_told(tmp_path, monkeypatch):
    """Root may read all files, so the system's answer is made up."""
    (tmp_path / "a.txt").write_text("text")

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.read_bytes", denied)
    with pytest.raises(SourceError, match=r"fetch\.calibration: .*a\.txt cannot be read \(Permission denied\)"):
        choose_text(local(tmp_path / "a.txt"), PLACE)


def test_a_damaged_member_of_a_wheel_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wheels.FOLDER.mkdir(parents=True)
    path = wheels.FOLDER / "texts-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("texts/1.txt", "plain text " * 9)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"plain text", b"other text", 1))
    source = WheelText(source="wheel", package="texts==1", sha256=sha256_of(path), member="texts/*.txt")
    with pytest.raises(SourceError, match=r"texts-1-py3-none-any\.whl is no wheel that can be read \(Bad CRC-32"):
        choose_text(source, PLACE)
