"""Collection of sessions: the sessions that it empties or retires, and the data that it leaves."""

from pathlib import Path
from typing import Any

import pytest

from ctxd.clock import SystemClock
from ctxd.objects.document import AsOf
from tests.unit.sessions.world import World, code_of, filled, record, say, world
from tests.unit.store.running import verified

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SES-25")]

DAY = 24 * 60 * 60 * 1000
KEEP = 90 * DAY


class Calendar(SystemClock):
    """The host's clock, with days that a test adds."""

    def __init__(self) -> None:
        self.days = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.days * DAY)


async def lived_through(w: World, clock: Calendar, days: int, *, step: int = 20) -> None:
    """Let ``days`` pass, in which another session is at work."""
    for _ in range(0, days, step):
        clock.days += step
        await say(w, "busy", ("user", "still here"))


async def gc(w: World, **params: Any) -> dict[str, tuple[str, str | None]]:
    """The action on each session, with the reason of one that is kept."""
    done = await w.call("session.gc", **{"keep_ms": KEEP, **params})
    assert done.next_cursor is None
    return {each.session: (each.action, each.reason) for each in done.sessions}


async def begun(w: World, *sessions: str) -> None:
    for session in ("busy", *sessions):
        await w.call("session.create", agent="a", session=session)


async def test_a_collection_empties_old_removed_sessions_and_retires_idle_ones(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w, "old", "idle", "fresh")
        await w.call("session.remove", session="old")
        await lived_through(w, clock, 80)
        assert await gc(w) == {}, "80 days are not 90"
        await say(w, "fresh", ("user", "hi"))
        await lived_through(w, clock, 20)
        wanted = {"old": ("emptied", None), "idle": ("retired", None)}
        assert await gc(w, dry_run=True) == wanted
        assert await gc(w, dry_run=True) == wanted, "a dry run changes nothing"
        assert await gc(w) == wanted
        assert await gc(w) == {}
        assert await code_of(w.call("session.get", session="old")) == "session_not_found"
        view = (await w.call("session.get", session="idle")).session
        assert (view.state, view.removed.idle, view.removed.by, view.removed.state) == (
            "removed",
            True,
            "host",
            "active",
        )
        assert (await w.call("session.restore", session="idle")).session.state == "active"
        assert await gc(w) == {}, "a restored session is not idle"
    verified(tmp_path / "state")


async def test_all_of_an_emptied_session_is_gone_and_its_id_stays_taken(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w)
        await filled(w, "gone", tmp_path)
        calls = [id for id in (await w.sessions.live("gone")).state.index if id.startswith("gone-call")]
        await w.call("session.remove", session="gone")
        await lived_through(w, clock, 100)
        (planned,) = (await w.call("session.gc", keep_ms=KEEP, dry_run=True)).sessions
        (done,) = (await w.call("session.gc", keep_ms=KEEP)).sessions
        assert (done.action, done.bytes) == (planned.action, planned.bytes)
        assert done.bytes > 1000
        for method in ("session.get", "session.chat", "session.restore", "session.remove"):
            assert await code_of(w.call(method, session="gone")) == "session_not_found"
        for id in ("session:gone", "chat:gone", "system_prompt:gone"):
            assert await code_of(w.call("object.get", object=id)) == "object_not_found"
            assert await code_of(w.call("object.history", object=id)) == "object_not_found"
        for id in calls:
            assert (await w.call("object.get", object=id)).object.state == "purged"
            assert await w.sessions.knowing(id) == []
        assert await code_of(w.call("session.create", agent="a", session="gone")) == "session_exists"
        listed = {row.object for row in (await w.call("object.list", limit=1000)).objects}
        assert not {"session:gone", "chat:gone", "system_prompt:gone"} & listed
        early = await w.sessions.store.get("session:gone", AsOf(tx=2))
        assert early is None or "labels" not in early.document.payload["settings"]
    async with world(tmp_path / "state", clock=clock) as w:
        assert await code_of(w.call("session.get", session="gone")) == "session_not_found"
        assert await gc(w) == {}
    verified(tmp_path / "state")
    raw = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    for said in (b"be good", b"turn 3"):
        assert said not in raw


async def test_objects_shared_with_other_sessions_are_kept(tmp_path: Path) -> None:
    clock = Calendar()
    path = tmp_path / "shared.txt"
    path.write_text("shared text")
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w, "gone", "stays")
        for session in ("gone", "stays"):
            await say(w, session, ("user", "the very same words"))
            file = await w.read(session, path)
            await record(w, session, f"{session}-1", "the same output")
        own = await w.read("gone", _written(tmp_path / "own.txt", "read by one session"))
        await w.call("session.remove", session="gone")
        before = await w.call("session.chat", session="stays")
        await lived_through(w, clock, 100)
        assert await gc(w) == {"gone": ("emptied", None), "stays": ("retired", None)}
        assert await w.call("session.chat", session="stays") == before
        for object, text in ((file, "shared text"), ("stays-1", "the same output"), (own, "read by one session")):
            found = (await w.call("object.get", object=object)).object
            assert (found.state, found.payload["content"]) == ("present", text)
        assert await w.sessions.knowing(file) == ["stays"]
        assert await w.sessions.knowing(own) == []
    verified(tmp_path / "state")


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.requirement("SES-26")
async def test_a_clock_that_jumps_forward_empties_nothing(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w, "removed")
        await w.call("session.remove", session="removed")
        clock.days = 5 * 365
        assert (await gc(w))["removed"] == ("kept", "clock")
        await say(w, "busy", ("user", "written after the jump"))
        await lived_through(w, clock, 40)
        assert await gc(w) == {"removed": ("kept", "clock")}, "a third of 90 days, and 40, are no 90"
        await lived_through(w, clock, 40)
        assert await gc(w, dry_run=True) == {"removed": ("emptied", None)}
        clock.days = 60
        assert await gc(w) == {}, "by the clock that was set right it is 60 days old"


@pytest.mark.requirement("SES-26")
async def test_force_trusts_the_clock(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w, "removed")
        await w.call("session.remove", session="removed")
        clock.days = 91
        assert (await gc(w, dry_run=True))["removed"] == ("kept", "clock")
        assert (await gc(w, force=True))["removed"] == ("emptied", None)


async def test_a_session_in_use_is_not_retired(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        await begun(w, "followed", "boxed")
        await lived_through(w, clock, 100)
        live = await w.sessions.live("followed")
        live.watched += 1
        w.sessions.visibility.restrict("box", ["boxed"], 1)
        assert await gc(w) == {"followed": ("kept", "in_use"), "boxed": ("kept", "sandbox")}
        live.watched -= 1
        w.sessions.visibility.lift("box", ["boxed"])
        assert await gc(w) == {"followed": ("retired", None), "boxed": ("retired", None)}


async def test_a_collection_continues_after_its_cursor(tmp_path: Path) -> None:
    clock = Calendar()
    async with world(tmp_path / "state", clock=clock) as w:
        names = [f"s{n}" for n in range(5)]
        await begun(w, *names)
        for name in names:
            await w.call("session.remove", session=name)
        await lived_through(w, clock, 100)
        found, cursor = [], None
        while True:
            page = await w.call("session.gc", keep_ms=KEEP, limit=2, cursor=cursor)
            found += [each.session for each in page.sessions]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == names
