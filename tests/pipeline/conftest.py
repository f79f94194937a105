"""A copy of the project in a git repository of its own, with fewer tokens, driven by DVC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.yamlfile import read_yaml, yaml_text

ROOT = Path(__file__).parents[2]
REDUCED: dict[str, Any] = {
    "compute": {"chunk": 4},
    "calibration": {"sequences": 8, "length": 128},
    "evaluate": {
        "attention": {"sequences": 2, "length": 64},
        "perplexity": {"window": 128, "stride": 128, "windows": 8},
        "tasks": {"limit": 5, "max_length": 256},
    },
}


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with `changes` laid over them, section by section."""
    merged = dict(values)
    for key, value in changes.items():
        merged[key] = merge(merged[key], value) if isinstance(value, dict) and key in merged else value
    return merged


class Project:
    """The copy: `sh` runs a command there, `repro` tells which stages ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bin_folder = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
            "DVC_NO_ANALYTICS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@localhost",
            "GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@localhost",
        }  # fmt: skip

    def sh(self, *command: str, code: int = 0) -> str:
        """Output of a command, which must end with this exit code (None: any)."""
        ended = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        output = ended.stdout + ended.stderr
        assert ended.returncode == code, f"{' '.join(command)} gave {ended.returncode}:\n{output[-4000:]}"
        return output

    def repro(self, *arguments: str, command: str = "repro") -> list[str]:
        """Run `dvc repro` (or another command that runs stages); the stages that ran, in order."""
        output = self.sh("dvc", *command.split(), *arguments)
        return re.findall(r"Running stage '([a-z_]+)'", output)

    def change(self, **sections: Any) -> None:
        """Lay `sections` over params.yaml."""
        path = self.folder / "params.yaml"
        values = merge(read_yaml(path), sections)
        path.write_text(yaml_text(values), encoding="utf-8")

    def commit(self, message: str) -> None:
        self.sh("git", "add", "-A")
        self.sh("git", "commit", "--quiet", "--allow-empty", "-m", message)


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Project:
    """The project after its first `dvc repro`; wheels that the checkout has are not downloaded again."""
    folder = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and name != "dvc.lock":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    wheels = folder / ".cache/wheels"
    wheels.mkdir(parents=True)
    for wheel in (ROOT / ".cache/wheels").glob("*.whl"):
        shutil.copy2(wheel, wheels)
    made = Project(folder)
    made.sh("git", "init", "--quiet")
    made.change(**REDUCED)
    made.commit("the project")
    assert sorted(made.repro()) == EVERY_STAGE
    for wheel in wheels.glob("*.whl"):
        (ROOT / ".cache/wheels").mkdir(parents=True, exist_ok=True)
        if not (ROOT / ".cache/wheels" / wheel.name).exists():
            shutil.copy2(wheel, ROOT / ".cache/wheels")
    made.commit("results")
    return made


EVERY_STAGE = [
    "assemble",
    "compare_attention",
    "evaluate",
    "evaluate_dense",
    "extract",
    "fetch",
    "measure_speed",
    "report",
    "solve",
    "statistics",
]
