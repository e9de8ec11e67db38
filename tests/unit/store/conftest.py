"""Where a test's store has its state."""

import pytest


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"
