"""Which unit tests run which line, and how long each takes: one run of tests/unit under coverage."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation.mutants import ROOMS

FIXTURE = "fixture "


class Contexts:
    """Pytest plugin: coverage's context is the running test, or the shared fixture that is being built.

    A fixture of a wider scope than a function is built once, for the first test that needs it; its lines
    belong to every test that uses it.
    """

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured, self.context = measured, ""
        self.seconds = dict[str, float]()
        self.failed = set[str]()
        self.fixtures = dict[str, list[str]]()

    def _switch(self, context: str) -> str:
        before, self.context = self.context, context
        self.measured.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.fixtures[item.nodeid] = list(getattr(item, "fixturenames", ()))
        before, start = self._switch(item.nodeid), time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = round(time.perf_counter() - start, 3)
            self._switch(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before = self._switch(FIXTURE + fixturedef.argname)
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # a skipped test kills nothing either
            self.failed.add(report.nodeid)


def collect(root: Path, tests: list[str], to: Path) -> None:
    """Runs `tests` in the tree `root` and writes the map: seconds of every test that passes, tests of every line."""
    measured = coverage.Coverage(data_file=None, source=[str(root / "stages" / room) for room in ROOMS])
    contexts = Contexts(measured)
    measured.start()
    pytest.main([*tests, "-q", "-p", "no:cacheprovider"], plugins=[contexts])
    measured.stop()
    data = measured.get_data()
    users = dict[str, list[str]]()
    for test, names in contexts.fixtures.items():
        for name in names:
            users.setdefault(FIXTURE + name, []).append(test)
    passed = {test: took for test, took in contexts.seconds.items() if test not in contexts.failed}
    number = {test: index for index, test in enumerate(passed)}
    lines = dict[str, dict[int, list[int]]]()
    for file in sorted(data.measured_files()):
        rows = lines[Path(file).relative_to(root).as_posix()] = {}
        for line, names in data.contexts_by_lineno(file).items():
            tests_of = {test for name in names for test in users.get(name, [name])}
            rows[line] = sorted(number[test] for test in tests_of if test in number)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps({"seconds": passed, "lines": lines}))


if __name__ == "__main__":
    collect(Path.cwd().resolve(), sys.argv[2:], Path(sys.argv[1]))
