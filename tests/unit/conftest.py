"""A tiny project folder, and a way to run stages in it."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from stages import assemble, compare_attention, extract, measure_speed, solve, statistics
from stages.runtime.stage import run_stage
from tests.helpers.tiny import tiny_workspace, write_params

STAGES = {
    "extract": extract,
    "statistics": statistics,
    "solve": solve,
    "assemble": assemble,
    "compare_attention": compare_attention,
    "measure_speed": measure_speed,
}


class Workspace:
    """A folder as fetch leaves it; `run` runs stages there, `change` rewrites params.yaml."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.told = list[str]()
        """Lines that the last stage wrote to stderr."""

    def change(self, **sections):
        write_params(self.folder, **sections)

    def run(self, *names: str) -> None:
        for name in names:
            code, error = self.fail(name)
            assert code == 0, error

    def fail(self, name: str) -> tuple[int, str]:
        """Exit code and the line that tells the error."""
        self._capsys.readouterr()
        code = run_stage(name, STAGES[name].main, STAGES[name].SECTIONS)
        self.told = self._capsys.readouterr().err.splitlines()
        lines = [line for line in self.told if ": error: " in line]
        return code, lines[-1] if lines else ""

    def bytes_of(self, output: str) -> dict[str, str]:
        """Hash of every file of an output."""
        files = sorted((self.folder / "data" / output).rglob("*"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


@pytest.fixture
def workspace(tmp_path, monkeypatch, capsys):
    def make(architecture: str = "llama", **sections) -> Workspace:
        monkeypatch.chdir(tmp_path)
        tiny_workspace(tmp_path, architecture, **sections)
        return Workspace(tmp_path, capsys)

    return make


@pytest.fixture
def logged(caplog):
    """What stages log; a stage's own set-up of logging takes pytest's handler off the root."""
    logger = logging.getLogger("secateur")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)
