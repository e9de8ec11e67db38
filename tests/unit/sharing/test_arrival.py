"""A session that another host takes in: its state there, and the size of the rows that bring it."""

from pathlib import Path

import msgspec
import pytest

from ctxd.sharing.session_rewriter import SessionRewriter
from tests.unit.sessions.world import record
from tests.unit.sharing.test_session_import import lived, two

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("HST-1")
@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [
        ("active", None, "active"),
        ("active", "paused", "paused"),
        ("pause", None, "paused"),
        ("pause", "active", "active"),
        ("close", "active", "closed"),
        ("close", "paused", "closed"),
    ],
)
async def test_a_session_arrives_in_the_requested_state_but_a_closed_one_stays_closed(
    tmp_path: Path, before: str, asked: str | None, after: str
) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await record(a.w, "s1", "call-1")
        if before != "active":
            await a.w.call(f"session.{before}", session="s1")
        await b.take(a, state=asked)
        assert (await b.w.call("session.get", session="s1")).session.state == after
        assert [row.state for row in (await b.w.call("session.list")).sessions] == [after]


async def test_a_row_takes_no_more_than_its_bound_unless_one_group_alone_exceeds_it(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("ctxd.sharing.session_rewriter.ROW_DOCUMENTS_MAX", 4)
    async with two(tmp_path) as (a, b):
        await lived(a, tmp_path / "files")
        await b.take(a)
        changes = await b.w.store.changes(after=0, limit=1000)
        assert len({change.seq for change in changes}) > 20
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
        assert await b.shown() == await a.shown()


async def test_each_record_is_inspected_once_for_any_number_of_files(tmp_path: Path) -> None:
    looks: list[str] = []

    class Payload(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            looks.append(name)
            return super().get(name, default)

    async with two(tmp_path) as (a, b):
        for session in ("s1", "other"):
            await a.w.call("session.create", agent="a", session=session, filesystem_id="nfs-1")
        for turn in range(4):
            for n in range(10):
                await a.w.call("file.index", session="s1", path=f"/shared/{n}", content=f"turn {turn}")
            await a.assemble()
        past, here = await b.take(a)
        replace = msgspec.structs.replace
        records = tuple(
            replace(each, document=replace(each.document, payload=Payload(each.document.payload)))
            for each in past.assemblies
        )
        SessionRewriter(replace(past, assemblies=records), replace(here, assemblies=()))
        assert len(records) == 4
        assert looks.count("active") == len(records)
