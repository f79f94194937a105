"""A folder that holds what the report reads."""

from __future__ import annotations

import pytest

from tests.helpers.report_findings import write_findings


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """What the other stages leave, made up."""
    monkeypatch.chdir(tmp_path)
    write_findings()
    return tmp_path
