"""One node in memory for the tests that can share it; asyncio, which is what speaks to nodes."""

from collections.abc import Iterator

import pytest

from tests.xtdb.running import Node, node


@pytest.fixture(scope="session")
def memory_node() -> Iterator[Node]:
    """A node in memory. Others use it too: keep to a writer and to ids of your own."""
    with node("memory") as running:
        yield running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
