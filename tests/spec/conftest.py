"""One real daemon for every test of the specification, and what each test has for itself: a client, a session, a tree.

Tests reach the product through ``ctxd_client`` only. Sessions and trees are fresh for each test, the daemon is shared:
a test must hold beside whatever the others have left in it.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from tests.client.running import Running

_NUMBER = itertools.count(1)


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the daemon under test is another process."""
    return "asyncio"


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon in a process of its own, running for all tests."""
    with Running(tmp_path_factory.mktemp("ctxd")) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[SyncClient]:
    """A client of the host."""
    with connect_sync(daemon.socket) as connected:
        yield connected


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty working tree, by its canonical path."""
    place = tmp_path / "tree"
    place.mkdir()
    return place.resolve()


@pytest.fixture
def start(client: SyncClient, tree: Path) -> Callable[..., SyncSession]:
    """``start(...)`` makes a fresh session in ``tree``; settings by name, as ``session_create`` takes them."""

    def start(**settings: Any) -> SyncSession:
        settings = {"session": f"spec-{next(_NUMBER)}", "workdir": str(tree), "agent": "spec", **settings}
        made = client.session_create(settings.pop("agent"), **settings)
        return client.session(made.session.session)

    return start


@pytest.fixture
def s(start: Callable[..., SyncSession]) -> SyncSession:
    """A fresh session that works in ``tree``."""
    return start()
