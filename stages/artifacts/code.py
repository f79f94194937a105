"""Hashes of the source files that a result follows from: the import closure of a module inside this package.

Keys of the block store hash these files: a change of any of them gives other keys, and one of no other file does.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
NEUTRAL = frozenset(
    f"{PACKAGE.name}/{name}"
    for name in (
        "__init__.py",
        "artifacts/__init__.py", "artifacts/atomic.py", "artifacts/code.py", "artifacts/manifest.py",
        "artifacts/places.py", "artifacts/store.py", "errors.py", "models/loading/memory.py", "params", "runtime",
    )
)  # fmt: skip
"""Files and folders that can change no bit of a result, and are not followed: what names, verifies and files
results (artifacts), runs and times the work (runtime), and reads parameters (params), whose values are in the keys."""


def code_of(*things: Callable[..., Any] | str) -> str:
    """Hash of the source code that functions, classes or modules (by name) follow from. Looked up once a process."""
    return _hash(frozenset(_module(one) if isinstance(one, str) else Path(inspect.getfile(one)) for one in things))


def code_version(paths: Iterable[Path], package: Path = PACKAGE) -> str:
    """Hash of all the code that some files of `package` follow from, by the files' paths in the package."""
    digest = hashlib.sha256()
    for path in sorted(closure(paths, package)):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def closure(paths: Iterable[Path], package: Path = PACKAGE) -> frozenset[Path]:
    """The import closure of some files within `package`, without neutral files and packages of a docstring only."""
    closed, left = set[Path](), list(paths)
    while left:
        path = left.pop()
        if path not in closed and not is_neutral(path.relative_to(package.parent).as_posix()):
            source = path.read_text(encoding="utf-8")
            if path.name == "__init__.py" and only_described(source):
                continue
            closed.add(path)
            inside = ".".join(path.parent.relative_to(package.parent).parts)
            for name in {inside} | _imported(source, inside):
                left += _files(name, package)
    return frozenset(closed)


@cache
def only_described(source: str) -> bool:
    """Whether a module holds nothing but a docstring."""
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in ast.parse(source).body)


def is_neutral(name: str) -> bool:
    """Whether a file (`stages/runtime/cost.py`) is in NEUTRAL."""
    return any(name == place or name.startswith(f"{place}/") for place in NEUTRAL)


@cache
def _hash(paths: frozenset[Path]) -> str:
    return code_version(paths)


def _module(name: str) -> Path:
    return PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")


@cache
def _imported(source: str, inside: str) -> frozenset[str]:
    """Dotted names of what a module of package `inside` imports; of names in a module, those of both."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), inside)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _files(name: str, package: Path) -> Iterator[Path]:
    """Files of `package` that run when a dotted name is imported: the module, and __init__ of all packages it is in."""
    parts = name.split(".")
    if parts[0] != package.name:
        return
    for depth in range(1, len(parts) + 1):
        place = package.parent.joinpath(*parts[:depth])
        yield from (path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file())
