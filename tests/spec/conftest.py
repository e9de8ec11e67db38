"""One real daemon for every test of the specification, and what each test has for itself: a client, a session, a tree,
a sandbox, and a daemon whose state it looks into.

Tests reach the product through ``ctxd_client`` only. Sessions and trees are fresh for each test, the daemon is shared:
a test must hold beside whatever the others have left in it and whatever becomes of that meanwhile (a sandbox of an
earlier test that ends, say). A test of what a whole daemon counts (rows of the journal, sandboxes, watches) is marked
``own_daemon``: its ``daemon``, and so ``client``, ``start``, ``s`` and ``boxed``, belong to no other test.

With ``CTXD_TEST_STORE=xtdb`` every daemon projects to one XTDB node, that at ``CTXD_TEST_STORE_URL`` or one of its own:
the product is the same on both stores.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ctxd_client import CallFailed, connect_sync, wire
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from tests.client.running import Running
from tests.spec.sandboxes import BOX, ROOMY
from tests.waiting import block_until

if TYPE_CHECKING:
    from tests.spec.test_hooks import Harness
    from tests.spec.test_import import Claude

_NUMBER = itertools.count(1)

LEVEL_S_MAX = 60.0
"""Seconds that a node may take to get what a whole run has written."""


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the daemon under test is another process."""
    return "asyncio"


@pytest.fixture(autouse=True)
def declared_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every error that a method returns in these tests is in the row that declares the method."""
    failure = wire.failure

    def checked(error: ErrorObject, call: wire.Call[Any]) -> CallFailed:
        code, row = error.data.code, call.method
        assert code in row.all_errors, (
            f"{row.name} returned {code}: add it to the errors of its row, then make generate"
        )
        return failure(error, call)

    monkeypatch.setattr(wire, "failure", checked)


@pytest.fixture(scope="session", autouse=True)
def store() -> Iterator[str]:
    """Environment that selects the store of this run's daemons."""
    chosen = os.environ.get("CTXD_TEST_STORE", "sqlite")
    with ExitStack() as stack:
        if chosen == "xtdb":
            monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
            monkeypatch.setenv("CTXD_STORE_BACKEND", "xtdb")
            monkeypatch.setenv("CTXD_STORE_URL", os.environ.get("CTXD_TEST_STORE_URL") or _node(stack))
        yield chosen


def _node(stack: ExitStack) -> str:
    from tests.xtdb.running import node

    return stack.enter_context(node("memory")).url


@pytest.fixture(scope="session")
def shared_daemon(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon in a process of its own, running for all tests."""
    with Running(tmp_path_factory.mktemp("ctxd")) as running:
        yield running
        if store == "xtdb":
            _require_level(running)


def _require_level(running: Running) -> None:
    """Wait until the node has all that the tests wrote."""
    with connect_sync(running.socket) as client:

        def is_level() -> bool:
            found = client.daemon_status().store.projection
            assert found is not None and found.quarantined == (), found
            return found.state == "projecting" and found.lag_rows == 0

        block_until(is_level, LEVEL_S_MAX)


@pytest.fixture
def daemon(request: pytest.FixtureRequest) -> Running:
    """The shared daemon, or one of the test's own if the test is marked ``own_daemon``."""
    own = request.node.get_closest_marker("own_daemon") is not None
    running: Running = request.getfixturevalue("kept" if own else "shared_daemon")
    return running


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


@pytest.fixture
def boxed(client: SyncClient, start: Callable[..., SyncSession], tree: Path) -> Callable[..., SandboxView]:
    """``boxed(...)`` registers a sandbox for a fresh session that has ``tree`` at /workspace."""

    def boxed(session: SyncSession | None = None, **settings: Any) -> SandboxView:
        mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(tree)),)
        own = session or start(filesystem_id=BOX, mounts=mounts, workdir="/workspace")
        settings = {"grace_s": 0, "quota": ROOMY, **settings}
        return client.sandbox_register([own.id], **settings).sandbox

    return boxed


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Running]:
    """A daemon of the test's own, whose state directory can be looked into."""
    with Running(tmp_path, keep_state=True) as running:
        yield running


@pytest.fixture
def claude() -> "Claude":
    """A new session of Claude Code, with its records as the harness writes them."""
    from tests.spec.test_import import Claude

    return Claude()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A daemon of its own, which can be killed and started again on its state."""
    with Running(tmp_path, keep_state=True) as running:
        yield running


@pytest.fixture
def harness(running: Running, tmp_path: Path) -> "Harness":
    """A harness whose hooks record to ``running``."""
    from tests.spec.test_hooks import Harness

    return Harness(running, tmp_path / "home")
