"""One node in memory for the tests that can share it, two with one log for pairs of hosts; asyncio, which is what
speaks to nodes.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.xtdb.hosts import Host, Pair, require_namespaces
from tests.xtdb.running import Node, Postgres, node, postgres, prepare


@pytest.fixture(scope="session")
def memory_node() -> Iterator[Node]:
    """A node in memory. Others use it too: keep to a writer and to ids of your own."""
    with node("memory") as running:
        yield running


@pytest.fixture(scope="module")
def log() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def nodes(log: Postgres) -> Iterator[tuple[Node, Node]]:
    require_namespaces()
    with (
        node("postgres", environ=log.environ) as one,
        node("postgres", environ=log.environ) as other,
    ):
        yield one, other


@pytest.fixture
def pair(nodes: tuple[Node, Node], tmp_path: Path) -> Pair:
    def make(ahead_ms: tuple[int, int] = (0, 0)) -> tuple[Host, Host]:
        return (
            Host("alpha", nodes[0], tmp_path / "a", ahead_ms=ahead_ms[0]),
            Host("beta", nodes[1], tmp_path / "b", ahead_ms=ahead_ms[1]),
        )

    return make


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Install the node before the first test of it, and outside of the time that a test may take: it takes longer."""
    # Every folder's tests pass here.
    if item.path.parent == Path(__file__).parent:
        prepare()
    return (yield)
