"""Folders that tests of sources write to."""

import pytest


@pytest.fixture
def target(tmp_path):
    """The folder that a model is fetched into."""
    (tmp_path / "target").mkdir()
    return tmp_path / "target"
