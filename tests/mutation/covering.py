"""Which unit tests can notice a mutant: those that run its line, from the map that one covered run leaves."""

from __future__ import annotations

import ast
import json
from pathlib import Path


class Covering:
    """Seconds of every passing test, and the tests of every line; folder holds one map a folder of tests."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self.seconds = dict[str, float]()
        self._tests = dict[str, dict[int, set[str]]]()
        for file in sorted(folder.glob("*.json")):
            part = json.loads(file.read_text())
            names = list(part["seconds"])
            self.seconds |= part["seconds"]
            for path, rows in part["lines"].items():
                tests = self._tests.setdefault(path, {})
                for line, numbers in rows.items():
                    tests.setdefault(int(line), set()).update(names[number] for number in numbers)
        if not self.seconds:
            raise FileNotFoundError(f"{folder} holds no map of tests: run `python -m tests.mutation map` first")

    def tests(self, path: str, line: int) -> list[str]:
        """Tests of the line, else of its function, else of all that uses the module's names; the quickest first.

        A test of the mutant's own room counts as a third as long: it asserts more about the line.
        """
        rows = self._tests.get(path, {})
        tree = ast.parse((self.root / path).read_text())
        found = rows.get(line, set()) or self._of(rows, _function(tree, line))
        if not found:
            found = self._of(rows, _bodies(tree)) | self._importers(path)
        own = f"tests/unit/{path.split('/')[1]}/"
        return sorted(found, key=lambda test: (self.seconds[test] / (3 if test.startswith(own) else 1), test))

    @staticmethod
    def _of(rows: dict[int, set[str]], lines: list[int]) -> set[str]:
        return set().union(*(rows.get(line, set()) for line in lines))

    def _importers(self, path: str) -> set[str]:
        """Tests of the lines that name what is imported from the module: compiled kernels show no lines themselves."""
        module = path.removesuffix(".py").replace("/", ".")
        found = set[str]()
        for other, rows in self._tests.items():
            tree = ast.parse((self.root / other).read_text())
            names = {
                alias.asname or alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module == module
                for alias in node.names
            }
            uses = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
            found |= self._of(rows, uses)
        return found


def _function(tree: ast.Module, line: int) -> list[int]:
    """Lines of the innermost function around the line, its decorators and defaults included; none outside of one."""
    around = [
        (node.lineno, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and min([node.lineno, *(one.lineno for one in node.decorator_list)]) <= line <= (node.end_lineno or 0)
    ]
    if not around:
        return []
    node = max(around, key=lambda pair: pair[0])[1]
    return list(range(node.body[0].lineno, (node.end_lineno or 0) + 1))


def _bodies(tree: ast.Module) -> list[int]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)]
