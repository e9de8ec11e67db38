"""Entries and component texts of sessions that go to another host and return."""

import pytest

from ctxd.objects.generated_ids import component_text_id
from ctxd.projection.ownership_checks import Fence
from ctxd.sessions.session_objects import entries
from tests.unit.sessions.world import record
from tests.unit.sharing.test_session_import import Host, rows_of, two
from tests.unit.store.documents import document, write
from tests.unit.store.running import verified

pytestmark = pytest.mark.anyio


async def entries_of(each: Host) -> dict[str, str]:
    """Return the entries of the session, as JSON texts."""
    found = await entries(each.w.store, "s1", (await each.w.sessions.live("s1")).settings.entries)
    return {key: value for key, (_, value) in found.items()}


@pytest.mark.requirement("HST-4")
async def test_a_session_returns_without_late_writes_of_its_entries(tmp_path):
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for key in ("changed", "deleted"):
            await a.w.call("session.set_entry", session="s1", key=key, value="early")
        await record(a.w, "s1", "t0")
        await b.take(a)
        first = await rows_of(a) + 1
        for key in ("changed", "added"):
            await a.w.call("session.set_entry", session="s1", key=key, value="late")
        await a.w.call("session.delete_entry", session="s1", key="deleted")
        a.fences.add(Fence(session="s1", first=first, branch=None, host="b", token=2), await rows_of(a) + 1)
        await record(b.w, "s1", "b-call")
        await a.take(b)
        assert await entries_of(a) == await entries_of(b) == {"changed": '"early"', "deleted": '"early"'}
        before = await rows_of(a)
        await a.take(b)
        assert await rows_of(a) <= before + 4, "what is here already is not copied"
    verified(tmp_path / "a")


@pytest.mark.requirement("HST-11")
async def test_a_fork_that_returns_does_not_copy_the_component_texts_that_it_shares(tmp_path):
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1", workdir=str(tmp_path))
        await record(a.w, "s1", "t0")
        shared = component_text_id("s1", "f" * 32)
        await a.w.store.submit(write(document(shared, "shared", type="component_text"), session="s1")).wait()
        await record(a.w, "s1", "t1")
        await a.w.call("session.fork", session="s1", fork="f1")
        await b.take(a, "f1")
        await record(b.w, "f1", "t2")
        await a.take(b, "f1")
        assert (await a.w.store.heads([shared]))[shared] is not None
        copied = component_text_id("f1", "f" * 32)
        assert (await a.w.store.heads([copied]))[copied] is None
        assert (await b.w.store.heads([copied]))[copied] is not None
