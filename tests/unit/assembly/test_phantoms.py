"""No read tells of another session's write that is lost afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd import failpoints
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers import context, files, mounts, objects
from ctxd.sessions.change_notices import NoticeFeeds
from ctxd.sessions.live_session import LiveSession, write_request
from ctxd.sessions.operation_table import Operations
from ctxd_protocol.methods import METHODS
from ctxd_protocol.session_types import Collapse
from tests.unit.assembly.stored_sessions import Household, household
from tests.unit.sessions.world import lists, session_handlers

pytestmark = pytest.mark.anyio

CALLER = Caller(principal="p", capability="host", session=None, connection=1, notify=lambda _, __: True)
OLD, NEW = "old", "a text of another length"


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Household]:
    async with household(tmp_path) as home:
        with anyio.fail_after(30):
            yield home


async def call(home: Household, method: str, **params: Any) -> Any:
    handlers = (
        bound(objects.ObjectCalls(home.sessions))
        | bound(files.FileCalls(home.sessions, home.indexer))
        | bound(mounts.MountCalls())
        | session_handlers(
            Operations(home.sessions, home.indexer, Collapse(), "flag"), NoticeFeeds(home.sessions), lists(home)
        )
        | bound(context.ContextCalls(home.sessions, home.assembler, home.archive, home.checkpoints))
    )
    given = msgspec.convert(params, METHODS[method].params)
    request = [write_request(method, "p", given)] if METHODS[method].writes else []
    accepted: Any = await handlers[method](CALLER, given, *request)
    if hasattr(accepted, "pending"):
        return accepted.result(None if accepted.pending is None else await accepted.pending.wait())
    return accepted


@pytest.fixture
async def shared(home: Household) -> AsyncIterator[tuple[LiveSession, str]]:
    """The session ``a`` has read a file; what the other session writes next is lost."""
    path = home.files / "shared.txt"
    path.write_text(OLD)
    one, two = await home.create("a"), await home.create("b")
    await home.read(one, path)
    id = await home.read(two, path)
    await home.store.wait_for_writes()
    path.write_text(NEW)
    with failpoints.armed("journal.flush=sleep:50ms;journal.commit=error:ENOSPC*1"):
        yield two, id


async def test_a_listing_waits_for_versions_of_other_sessions(home: Household, shared: tuple[LiveSession, str]) -> None:
    other, id = shared
    await home.read(other, home.files / "shared.txt")
    lost = other.last_pending
    (item,) = (await call(home, "object.list", session="a")).objects
    assert (item.object, item.char_count) == (id, len(OLD))
    with pytest.raises(CtxdError, match="failpoint"):
        await lost.wait()


async def test_a_plan_counts_no_version_that_is_lost(home: Household, shared: tuple[LiveSession, str]) -> None:
    other, _ = shared
    before = await call(home, "context.plan", session="a")
    await home.read(other, home.files / "shared.txt")
    assert await call(home, "context.plan", session="a") == before


async def test_a_path_is_not_known_by_a_stub_that_is_lost(home: Household, shared: tuple[LiveSession, str]) -> None:
    other, _ = shared
    fresh = home.files / "fresh.txt"
    fresh.write_text("fresh")
    await home.discover(other, [fresh])
    assert not (await call(home, "file.resolve", session="a", path=str(fresh))).known
