"""A node in memory to project to, and no wait between attempts."""

import pytest

from ctxd.projection import projection_loop
from tests.fakes.node import MemoryNode


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def node():
    return MemoryNode()


@pytest.fixture
def quick(monkeypatch):
    """Shorten the waits between attempts."""
    monkeypatch.setattr(projection_loop, "BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(projection_loop, "RECHECK_S", 0.02)
