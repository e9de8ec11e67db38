"""A session that another host claimed: it takes no writes here, and an import that was overtaken is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.projection.ownership_checks import Fence, Ownership
from ctxd.sharing.ownership_loss import OwnershipLoss
from tests.unit.sessions.world import World, code_of, record, world

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def losing(root: Path) -> AsyncIterator[tuple[World, OwnershipLoss, Ownership]]:
    """A world with session "s", whose writes are refused once it is lost. No log is asked in these tests."""
    async with world(root) as w:
        ownership = Ownership(None)
        loss = OwnershipLoss(
            w.sessions, cast(Any, None), ownership, SystemClock(), projected=lambda: 0, log_event=lambda *_: None
        )
        await w.call("session.create", agent="a", session="s")
        yield w, loss, ownership


async def test_a_session_claimed_by_another_host_rejects_writes_even_in_memory(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        live = await w.sessions.live("s")
        loss.refuse_writes("s", "b")
        assert w.sessions.moved_sessions["s"].host == "b"
        with pytest.raises(CtxdError, match="was unloaded"):
            live.require_current()
        assert await code_of(record(w, "s", "call")) == "session_owned_elsewhere"


async def test_a_session_already_refused_stays_with_its_first_new_host(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        loss.refuse_writes("s", "b")
        live = await w.sessions.live("s")
        loss.refuse_writes("s", "c")
        assert w.sessions.moved_sessions["s"].host == "b"
        assert await w.sessions.live("s") is live


async def test_a_session_that_is_not_here_is_not_refused(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        loss.refuse_writes("other", "b")
        assert w.sessions.moved_sessions == {}


async def test_an_import_counts_unless_the_session_was_lost_after_its_row(tmp_path: Path) -> None:
    async with losing(tmp_path) as (_, loss, ownership):
        loss.require_kept("s", 0)
        ownership.fences.add(Fence(session="s", first=3, branch=None, host="b", token=2), 7)
        loss.refuse_writes("s", "b")
        loss.require_kept("s", 7)
        with pytest.raises(CtxdError, match="owned by host b"):
            loss.require_kept("s", 6)
