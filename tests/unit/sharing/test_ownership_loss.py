"""A session that another host claimed: it takes no writes here, and an import that was overtaken is refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.projection.owner_record import Owner
from ctxd.projection.ownership_checks import Fence, Ownership, OwnershipLost
from ctxd.sessions.session_objects import entries
from ctxd.sessions.sessions_elsewhere import MovedSession
from ctxd.sharing.ownership_loss import OwnershipLoss
from tests.unit.sessions.world import World, code_of, record, world

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def losing(root: Path) -> AsyncIterator[tuple[World, OwnershipLoss, Ownership]]:
    """A world with session "s", whose writes are refused once it is lost. Host "b" is the only other one on the log."""
    async with world(root) as w:
        ownership = Ownership(None)
        log = SimpleNamespace(learn_lease=lambda _: anyio.sleep(0), heartbeat=SimpleNamespace(host=lambda _: "b"))
        loss = OwnershipLoss(
            w.sessions, cast(Any, log), ownership, SystemClock(), projected=lambda: 0, log_event=lambda *_: None
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


@pytest.mark.requirement("HST-2")
async def test_a_refusal_names_the_newest_owner_and_the_branch(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        first = await next_row(w)
        await record(w, "s", "late")
        branch = await branch_of(w, loss, "s", first)
        live = await w.sessions.live("s")
        loss.refuse_writes("s", "c")
        assert w.sessions.moved_sessions["s"] == MovedSession("c", branch)
        with pytest.raises(CtxdError, match="owned by host c"):
            await record(w, "s", "call")
        assert await w.sessions.live("s") is live


async def test_a_session_that_is_not_here_is_not_refused(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        loss.refuse_writes("other", "b")
        assert w.sessions.moved_sessions == {}


async def next_row(w: World) -> int:
    await w.store.wait_for_writes()
    head = w.store.head()
    assert head is not None
    return head.seq + 1


async def branch_of(w: World, loss: OwnershipLoss, session: str, first: int) -> str | None:
    """Return the branch with the writes to ``session`` from row ``first`` on."""
    await loss.settle(OwnershipLost({session: Owner(writer="b" * 32, token=2)}, first))
    return w.sessions.moved_sessions[session].branch


@pytest.mark.requirement("HST-4")
@pytest.mark.parametrize("key, value", [("plan", "late"), ("other", "late"), ("plan", None)])
async def test_a_late_write_of_an_entry_is_kept_in_a_branch(tmp_path: Path, key: str, value: str | None) -> None:
    async with losing(tmp_path) as (w, loss, _):
        await w.call("session.set_entry", session="s", key="plan", value="early")
        first = await next_row(w)
        if value is None:
            await w.call("session.delete_entry", session="s", key=key)
        else:
            await w.call("session.set_entry", session="s", key=key, value=value)
        branch = await branch_of(w, loss, "s", first)
        assert branch is not None
        found = await entries(w.store, branch, (await w.sessions.live(branch)).settings.entries)
        assert found.get(key) is None if value is None else found[key][1] == f'"{value}"'


@pytest.mark.requirement("HST-4")
async def test_sessions_that_begin_alike_have_branches_of_their_own(tmp_path: Path) -> None:
    async with losing(tmp_path) as (w, loss, _):
        sessions = ["x" * 120 + end for end in ("-one", "-two")]
        for session in sessions:
            await w.call("session.create", agent="a", session=session)
        first = await next_row(w)
        for session in sessions:
            await record(w, session, "call" + session[-4:])
        for session in sessions:
            branch = await branch_of(w, loss, session, first)
            assert branch is not None
            assert list((await w.sessions.live(branch)).state.index) == ["call" + session[-4:]]


async def test_an_import_counts_unless_the_session_was_lost_after_its_row(tmp_path: Path) -> None:
    async with losing(tmp_path) as (_, loss, ownership):
        loss.require_kept("s", 0)
        ownership.fences.add(Fence(session="s", first=3, branch=None, host="b", token=2), 7)
        loss.refuse_writes("s", "b")
        loss.require_kept("s", 7)
        with pytest.raises(CtxdError, match="owned by host b"):
            loss.require_kept("s", 6)
