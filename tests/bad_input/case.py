"""A bad input as a row of a table, and the ways in which a good project is spoiled."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Change = Callable[[Path], object]
"""Spoils the project in a folder."""


@dataclass(frozen=True)
class Limits:
    """What the system grants a command.

    file_bytes:    size that a file may reach (ulimit -f), None: any;
    address_bytes: address space (ulimit -v), None: any;
    writes_anywhere: false: permissions hold for root too (tests may run as root, whom no mode stops).
    """

    file_bytes: int | None = None
    address_bytes: int | None = None
    writes_anywhere: bool = True


@dataclass(frozen=True)
class Case:
    """A command in a spoiled project, and what its error line must say.

    name:    what is wrong, in words; unique.
    command: as after `python -m`: `stages.solve`, `flows.pipeline solve.sparsity=2`.
    told:    regular expressions, each of which the error line must match: the place, what was expected and what
             came, what to do. None for input that must pass.
    """

    name: str
    command: str
    change: tuple[Change, ...]
    told: tuple[str, ...] | None
    environment: dict[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    code: int = 2


def bad(name: str, command: str, change: Change | tuple[Change, ...], *told: str, **options: object) -> Case:
    """A case that must end in one line."""
    assert told, f"{name}: what must the line say?"
    return Case(name, command, change if isinstance(change, tuple) else (change,), told, **options)  # type: ignore[arg-type]


def good(name: str, command: str, *change: Change, **options: object) -> Case:
    """A case that must pass: the way of writing is a good one."""
    return Case(name, command, change, None, code=0, **options)  # type: ignore[arg-type]


def both(*changes: Change) -> Change:
    """One change after the other."""
    return lambda folder: [change(folder) for change in changes]


def nothing(folder: Path) -> None:
    """The project is good; the command line is not."""


def edit(old: str, new: str, path: str = "params.yaml") -> Change:
    """Replace a piece of a text file that stands there once."""

    def change(folder: Path) -> None:
        text = (folder / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} holds {old!r} {text.count(old)} times"
        write(path, text.replace(old, new))(folder)

    return change


def section(text: str) -> Change:
    """Write a section of params.yaml anew: `section("solve: {method: wanda, sparsity: 2}")`."""
    name = text.split(":")[0]

    def change(folder: Path) -> None:
        before = (folder / "params.yaml").read_text(encoding="utf-8")
        after, count = re.subn(rf"^{name}:.*\n(?:(?:[ #].*)?\n)*", lambda _: text.rstrip() + "\n", before, flags=re.M)
        assert count == 1, f"params.yaml has {count} sections {name}"
        write("params.yaml", after)(folder)

    return change


def write(path: str, content: str | bytes) -> Change:
    """Write a file."""

    def change(folder: Path) -> None:
        fresh(folder / path).write_bytes(_bytes(content))

    return change


def fresh(path: Path) -> Path:
    """The path, ready for a new file: the old one may be a link to another copy's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def append(path: str, content: str | bytes) -> Change:
    """Write more at the end of a file."""
    return lambda folder: write(path, (folder / path).read_bytes() + _bytes(content))(folder)


def remove(path: str) -> Change:
    """Remove a file or a folder."""
    return lambda folder: shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()


def flip(path: str) -> Change:
    """Change the last byte of a file, as a bad disk does."""

    def change(folder: Path) -> None:
        data = bytearray((folder / path).read_bytes())
        data[-1] ^= 1
        write(path, bytes(data))(folder)

    return change


def cut(path: str, share: float = 0.5) -> Change:
    """Keep the beginning of a file, as a copy that was stopped does."""

    def change(folder: Path) -> None:
        data = (folder / path).read_bytes()
        write(path, data[: int(share * len(data))])(folder)

    return change


def read_only(*paths: str) -> Change:
    """Take the permission to write to folders."""
    return lambda folder: [(folder / path).chmod(0o555) for path in paths]


def unreadable(path: str) -> Change:
    """Take the permission to read a file."""

    def change(folder: Path) -> None:
        write(path, (folder / path).read_bytes())(folder)
        (folder / path).chmod(0)

    return change


def edit_json(path: str, **values: object) -> Change:
    """Lay values over a JSON object."""

    def change(folder: Path) -> None:
        found = json.loads((folder / path).read_text(encoding="utf-8"))
        write(path, json.dumps({**found, **values}))(folder)

    return change


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
