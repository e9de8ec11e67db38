"""One node in memory for the tests that can share it; asyncio, which is what speaks to nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.xtdb.running import Node, node, prepare


@pytest.fixture(scope="session")
def memory_node() -> Iterator[Node]:
    """A node in memory. Others use it too: keep to a writer and to ids of your own."""
    with node("memory") as running:
        yield running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install the node before the first test of it: that takes longer than a test may."""
    if (
        any(item.path.parent == Path(__file__).parent for item in session.items)
        and not session.config.option.collectonly
    ):
        prepare()
