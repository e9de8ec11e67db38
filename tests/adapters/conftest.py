"""A daemon for the tests of the adapters, which need the environment that ``make adapters`` makes.

Elsewhere they are skipped; with ``CTXD_REQUIRE_ADAPTERS=1`` they fail.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.client.running import Running

NEEDED = ("langgraph", "claude_agent_sdk")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what cannot be imported; ``test_environment.py`` reports it."""
    if collection_path.suffix != ".py" or collection_path.name in ("test_environment.py", "conftest.py"):
        return None
    return True if missing() else None


def missing() -> list[str]:
    """The packages that are not here."""
    return [name for name in NEEDED if find_spec(name) is None]


@pytest.fixture
def anyio_backend() -> str:
    """The conformance suites run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon for all tests that do not end it."""
    with Running(tmp_path_factory.mktemp("ctxd")) as running:
        yield running


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Running]:
    """A daemon of the test's own, which keeps its state over ``kill`` and ``start``."""
    with Running(tmp_path, keep_state=True) as running:
        yield running


def required() -> bool:
    """True where tests may not be skipped."""
    return os.environ.get("CTXD_REQUIRE_ADAPTERS") == "1"
